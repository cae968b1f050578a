"""The oracle that is a language model.

Promises:
1. Its prompt is the student's own, at every step and in every template; two states that look alike
   to the student give the same prompt, whatever is hidden in them.
2. A reply that cannot be used is asked for again, with the error; after the last one TIMEOUT.
3. The thought of a reply comes with the decision, unless it could send another command.
4. In a branch it plays whole episodes, and the branch is what the student would have seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.prompting import History as Memory
from agent_envs.prompting import get_template
from oracles import Decision, HistoryItem, Message, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Reason, run
from oracles.text_model import Seen, TextModelOracle, seen_in_view, thought_of
from oracles.webshop_goal import WebShopGoalOracle

FIELD = get_template("field")
ROOM = Seen("put a mug on the desk.", ("go to desk 1", "Look"), ("search[<query>]",))


class Replies:
    """A model that says what it is told to, and remembers what it was asked."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.chats: list[list[Message]] = []

    def __call__(self, messages: list[Message]) -> str:
        self.chats.append([Message(**message) for message in messages])
        messages.clear()  # its own copy
        return self.replies.pop(0)


def says(command: str, thought: str = "so") -> str:
    return f"<think>{thought}</think><action>{command}</action>"


def room(model: Replies, seen: Seen | None = ROOM, **options: Any) -> TextModelOracle:
    return TextModelOracle(
        model, FIELD, sees=lambda view, history, observation: seen, privileged=False, **options
    )


# ------------------------------------------------------------------ replies


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        (says("go to desk 1"), Decision(PlanStatus.FOUND, "go to desk 1", thought="so")),
        (says("LOOK"), Decision(PlanStatus.FOUND, "Look", thought="so")),
        (says("search[red mug]", " "), Decision(PlanStatus.FOUND, "search[red mug]")),
        (
            "<think>a <action>look</action></think><action>x</action>",
            Decision(PlanStatus.FOUND, "Look"),
        ),
    ],
)
def test_replies_that_can_be_used(reply: str, decision: Decision) -> None:
    model = Replies(reply)
    oracle = room(model)
    found, state = oracle.act(oracle.start(None, ()), None, "a room")
    assert found == decision
    assert decision.action is not None
    assert state == (HistoryItem("a room", decision.action, True),)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        ("go to desk 1", "its form is wrong (missing_action_tag)"),
        ("<action>look</action>", "its form is wrong (missing_think_tag)"),
        (says(""), "it has no command"),
        (says("fly"), "'fly' is none of the possible commands"),
        (says("search[]"), "'search[]' is none of the possible commands"),
    ],
)
def test_a_reply_that_cannot_be_used_is_asked_for_again(reply: str, error: str) -> None:
    model = Replies(reply, says("look"))
    oracle = room(model)
    decision, _ = oracle.act((), None, "a room")
    assert (decision.status, decision.action) == (PlanStatus.FOUND, "Look")
    first, second = model.chats
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": reply}
    assert second[len(first) + 1] == {
        "role": "user",
        "content": f"That reply cannot be used: {error}. Reply again, in the form that was asked "
        "for.",
    }
    assert len(second) == len(first) + 2


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_the_budget_of_replies_runs_out(retries: int) -> None:
    model = Replies(*[says(f"fly {n}") for n in range(9)])
    oracle = room(model, retries=retries)
    start = (HistoryItem("before", "look", True),)
    decision, state = oracle.act(start, None, "a room")
    assert len(model.chats) == retries + 1
    assert (decision.status, decision.action, state) == (PlanStatus.TIMEOUT, None, start)
    assert decision.detail == (
        f"none of {retries + 1} replies could be used; the last one: 'fly {retries}' is none of "
        "the possible commands"
    )


def test_statuses_and_arguments() -> None:
    oracle = room(Replies(), None)
    decision, _ = oracle.act((), None, "a room")
    assert (decision.status, decision.action) == (PlanStatus.UNSUPPORTED, None)
    assert "give the oracle a function `sees`" in decision.detail
    assert TextModelOracle(Replies(), FIELD).privileged
    assert not oracle.privileged
    with pytest.raises(ValueError, match="retries=-1"):
        room(Replies(), retries=-1)
    quiet = room(Replies(says("look")), thoughts=False)
    assert quiet.act((), None, "")[0] == Decision(PlanStatus.FOUND, "Look")
    free = room(Replies(says("anything")), Seen("a task"))
    assert free.act((), None, "")[0].action == "anything"


@pytest.mark.parametrize(
    ("reply", "thought"),
    [
        ("<think>\n a \n</think>", "a"),
        ("no tags", None),
        ("<think></think>", None),
        ("<think>a<think>b</think>", None),
        ("<think>a <ACTION>b</think>", None),
    ],
)
def test_thoughts(reply: str, thought: str | None) -> None:
    assert thought_of(reply) == thought


# ------------------------------------------------------------------ prompts

Made = Callable[[], tuple[gymnasium.Env[str, str], Any]]


def house() -> tuple[gymnasium.Env[str, str], Any]:
    return gymnasium.make("SeroALFWorld-v0", data="generated:small?train=3"), ALFWorldPlanner(None)


def shop() -> tuple[gymnasium.Env[str, str], Any]:
    return gymnasium.make("SeroWebShop-v0", data="generated:small"), WebShopGoalOracle(None)


@pytest.mark.parametrize("name", ["field", "compact"])
@pytest.mark.parametrize(("make", "pages"), [(house, "plain"), (shop, "webshop")])
def test_the_prompt_is_the_students_own(name: str, make: Made, pages: str) -> None:
    """Rendered here from what `reset` and `step` gave, refused commands included."""
    env, planner = make()
    unwrapped: Any = env.unwrapped
    template = get_template(name, pages=pages)
    observation, info = env.reset(seed=2)
    plan = planner.plan(unwrapped.privileged())
    memory = Memory()
    record: list[HistoryItem] = []
    for command in ("fly", *plan.actions):
        view = memory.view(
            info["goal"], observation, info["admissible_actions"], info["action_templates"]
        )
        rendered = template.render(view)
        reply = template.format_command(command).text
        model = Replies(*[reply] * 9)
        oracle = TextModelOracle(model, template)
        decision, _ = oracle.act(
            oracle.start(None, tuple(record)), unwrapped.privileged(), observation
        )
        assert (decision.action is None) == (command == "fly")
        if isinstance(rendered, str):
            assert model.chats[0] == [{"role": "user", "content": rendered}]
        else:
            assert model.chats[0] == rendered
        seen, (observation, *_, info) = observation, env.step(command)
        memory = memory.append(seen, command, info["command_valid"])
        record.append(HistoryItem(seen, command, info["command_valid"]))
    assert info["success"]


def test_states_that_look_alike_give_one_prompt() -> None:
    """Two goals with one sentence: what else is in them does not show."""
    env, _ = shop()
    unwrapped: Any = env.unwrapped
    observation, _ = env.reset(seed=0)
    view = unwrapped.privileged()
    secret = view.goal._replace(asin="B0SECRET00", name="secret", attributes=("secret",))
    chats = []
    for goal in (view.goal, secret):
        model = Replies(says("search[x]"))
        oracle = TextModelOracle(model, FIELD)
        shown = type(view)(view.shop, goal, view.session, view.steps_left, view.rules)
        oracle.act((), shown, observation)
        chats += model.chats
    assert chats[0] == chats[1]
    assert "secret" not in str(chats[1])
    assert seen_in_view(None, (), "") is None


# ------------------------------------------------------------------ branches


@pytest.mark.parametrize("make", [house, shop])
def test_it_plays_a_branch(make: Made) -> None:
    """A model that knows the way wins; one that has forgotten it is told from an impasse."""
    env, planner = make()
    unwrapped: Any = env.unwrapped
    env.reset(seed=1)
    fork = agent_envs.fork(env)
    root = agent_envs.snapshot(env)
    plan = planner.plan(unwrapped.privileged())
    way = [says(command, f"step {n}") for n, command in enumerate(plan.actions)]
    model = Replies("no idea", *way)
    branch = run(fork, root, TextModelOracle(model, FIELD))
    assert branch.valid
    assert branch.success
    assert tuple(step.action for step in branch.steps) == plan.actions
    assert [step.thought for step in branch.steps] == [f"step {n}" for n in range(len(way))]
    assert branch == run(fork, root, TextModelOracle(Replies(*way), FIELD))
    lost = run(fork, root, TextModelOracle(Replies(way[0], *["hm"] * 3), FIELD))
    assert (lost.reasons, len(lost.steps)) == ((Reason.of_status(PlanStatus.TIMEOUT),), 1)
    broken = run(fork, root, TextModelOracle(Replies(), FIELD))
    assert broken.reasons == (Reason.ORACLE_ERROR,)
