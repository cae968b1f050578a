"""The leak audit: hand-made branches counted by hand, and oracles that know or do not know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs import Snapshot
from agent_envs.alfworld.games import GameSet
from agent_envs.streams import stream
from agent_envs.webshop.shop import Shop
from oracles import HistoryItem, Oracle
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Branch, BranchStatus, BranchStep, run
from oracles.leak_alfworld import CONTAINER, DESTINATION, leaks
from oracles.leak_audit import EXAMPLES, Leak, LeakExample, LeakFigures, audit, register_audit
from oracles.leak_webshop import NOT_APPARENT, NOT_SHOWN, OPTION, QUERY
from oracles.walks import PLAYERS, Walk, walks
from oracles.webshop_baselines import ChoiceOracle, RuleOracle
from oracles.webshop_goal import WebShopGoalOracle
from tests.oracles.twins import branch_in, households
from tests.support import full_count

ALFWORLD, WEBSHOP = "SeroALFWorld-v0", "SeroWebShop-v0"
Lines = Sequence[tuple[str, str]]
"""Commands and their answers."""


def branch_of(first: str, played: Lines, asked: Lines, goal: str, env_id: str = ALFWORLD) -> Branch:
    """A branch from texts: `first`, then what the student did, then what the oracle did."""
    history, text = [], first
    for command, reply in played:
        history.append(HistoryItem(text, command, reply != "Nothing happens."))
        text = reply
    steps = []
    for command, reply in asked:
        buttons = ("click[buy now]",) if "Buy Now" in text else ()
        steps.append(BranchStep(text, buttons, (), command, 0.0, True, False, False, reply))
        text = reply
    return Branch(
        BranchStatus.HORIZON,
        valid=True,
        reasons=(),
        detail="",
        steps=tuple(steps),
        success=False,
        score=0.0,
        total_reward=0.0,
        root=Snapshot(1, env_id, "task", (), None, (), (), "none"),
        steps_left=None,
        goal=goal,
        history=tuple(history),
        root_step=len(history),
    )


# ------------------------------------------------------------------ ALFWorld by hand


def home(asked: Lines, played: Lines = (), *, task: str, recs: str) -> Branch:
    listed = ", ".join(f"a {rec}" for rec in recs.split(", "))
    return branch_of(
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly "
        f"around you, you see {listed}.\n\nYour task is to: {task}",
        played,
        asked,
        task,
    )


def arrive(rec: str, objs: str = "nothing") -> tuple[str, str]:
    return f"go to {rec}", f"You arrive at {rec}. On the {rec}, you see {objs}."


def closed(rec: str) -> tuple[str, str]:
    return f"go to {rec}", f"You arrive at {rec}. The {rec} is closed."


def opens(rec: str, objs: str = "nothing") -> tuple[str, str]:
    reply = f"You open the {rec}. The {rec} is open. In it, you see {objs}."
    return f"open {rec}", reply


def takes(obj: str, rec: str) -> tuple[str, str]:
    return f"take {obj} from {rec}", f"You pick up the {obj} from the {rec}."


def puts(obj: str, rec: str) -> tuple[str, str]:
    return f"move {obj} to {rec}", f"You move the {obj} to the {rec}."


def drawers(asked: Lines, played: Lines = ()) -> Branch:
    """Three closed drawers, and a pen to be found."""
    room = "drawer 1, drawer 2, drawer 3"
    return home(asked, played, task="put some pen in garbagecan.", recs=room)


STRAIGHT = (closed("drawer 3"), opens("drawer 3", "a pen 1"), takes("pen 1", "drawer 3"))


def leaks_of(branch: Branch, env_id: str = ALFWORLD) -> list[int]:
    """Steps that leak, of at most five."""
    figures = audit([branch], env_id)
    assert figures is not None
    assert figures.commands == len(branch.steps)
    assert figures.leaked == len(figures.examples) == sum(figures.by_kind.values())
    return [example.k for example in figures.examples]


def test_one_command_is_counted_where_the_oracle_walks_straight_to_a_hidden_object() -> None:
    figures = audit([drawers(STRAIGHT)], ALFWORLD)
    why = (
        "no pen had been seen that is still needed, and the first place looked into, drawer 3, "
        "has pen 1"
    )
    example = LeakExample("task", 0, "go to drawer 3", why)
    assert figures == LeakFigures(3, 1, 1 / 3, {DESTINATION: 1}, (example,))


def test_a_find_after_a_wrong_guess_is_a_search() -> None:
    guess = (closed("drawer 1"), opens("drawer 1", "a cd 1"))
    assert leaks_of(drawers((*guess, *STRAIGHT))) == []
    # a closed door that was not opened is no guess yet
    assert leaks_of(drawers((guess[0], *STRAIGHT))) == [1]


def test_wrong_guesses_of_the_student_do_not_excuse_the_oracle() -> None:
    played = (closed("drawer 1"), opens("drawer 1"))
    assert leaks_of(drawers(STRAIGHT, played)) == [0]


def test_what_was_seen_gives_nothing_away() -> None:
    played = (closed("drawer 3"), opens("drawer 3", "a pen 1"), closed("drawer 1"))
    assert leaks_of(drawers((closed("drawer 3"), STRAIGHT[2]), played)) == []
    # one pen is enough, so another one is not needed and not given away
    other = (closed("drawer 2"), opens("drawer 2", "a pen 2"))
    assert leaks_of(drawers(other, played)) == []


def test_the_last_unseen_place_is_no_guess() -> None:
    played = (closed("drawer 1"), opens("drawer 1"), closed("drawer 2"), opens("drawer 2"))
    assert leaks_of(drawers(STRAIGHT, played)) == []


def test_the_one_place_to_begin_with_is_no_leak() -> None:
    """A tomato is in the fridge more often than in a cabinet; of two fridges neither is first."""
    task = "put some tomato in garbagecan."
    asked = (closed("fridge 1"), opens("fridge 1", "a tomato 1"))
    assert leaks_of(home(asked, task=task, recs="cabinet 1, fridge 1")) == []
    assert leaks_of(home(asked, task=task, recs="fridge 1, fridge 2")) == [0]
    odd = (closed("cabinet 1"), opens("cabinet 1", "a tomato 1"))
    assert leaks_of(home(odd, task=task, recs="cabinet 1, fridge 1")) == [0]


def test_opening_where_the_student_stands_is_a_pick_of_its_own() -> None:
    figures = audit([drawers(STRAIGHT[1:], STRAIGHT[:1])], ALFWORLD)
    assert figures is not None
    assert (figures.commands, figures.by_kind) == (2, {CONTAINER: 1})


def test_two_objects_are_two_searches() -> None:
    task, recs = "put two pen in garbagecan.", "drawer 1, drawer 2, drawer 3, desk 1, garbagecan 1"
    first = (arrive("drawer 2", "a pen 1"), takes("pen 1", "drawer 2"))
    put = (arrive("garbagecan 1", "a pen 3"), puts("pen 1", "garbagecan 1"))
    second = (arrive("drawer 1", "a pen 2"), takes("pen 2", "drawer 1"))
    # the bin is where the first pen goes, whatever is in it; then both are known
    assert leaks_of(home((*first, *put, *second), task=task, recs=recs)) == [0]
    empty = (arrive("garbagecan 1"), puts("pen 1", "garbagecan 1"))
    assert leaks_of(home((*first, *empty, *second), task=task, recs=recs)) == [0, 4]
    # a wrong guess on the way to the first says nothing of the second
    guess = (arrive("desk 1"), *first, *empty, *second)
    assert leaks_of(home(guess, task=task, recs=recs)) == [5]
    # with empty hands nothing leads to the bin
    assert leaks_of(home((arrive("garbagecan 1", "a pen 3"),), task=task, recs=recs)) == [0]


def test_what_the_student_put_somewhere_is_no_find() -> None:
    """Of a record that begins in the middle: nobody has looked what else is in the drawer."""
    played = (takes("pen 1", "desk 1"), puts("pen 1", "drawer 2"), arrive("drawer 1"))
    task, recs = "put two pen in garbagecan.", "drawer 1, drawer 2, drawer 3, desk 1"
    own = arrive("drawer 2", "a pen 1")
    assert leaks_of(home((own,), played, task=task, recs=recs)) == []
    other = arrive("drawer 2", "a pen 1, and a pen 2")
    assert leaks_of(home((other,), played, task=task, recs=recs)) == [0]


def test_a_lamp_that_was_not_seen_is_searched_for_as_well() -> None:
    task = "look at pen under the desklamp."
    recs = "desk 1, drawer 1, shelf 1, shelf 2"
    asked = (arrive("drawer 1", "a pen 1"), takes("pen 1", "drawer 1"))
    lamp = arrive("shelf 2", "a desklamp 1")
    assert leaks_of(home((*asked, lamp), task=task, recs=recs)) == [0, 2]
    assert leaks_of(home((*asked, lamp), (lamp, arrive("shelf 1")), task=task, recs=recs)) == [0]


def test_refused_commands_show_nothing() -> None:
    played = (("open drawer 3", "Nothing happens."), ("go to drawer 9", "Nothing happens."))
    assert leaks_of(drawers(STRAIGHT, played)) == [0]


# ------------------------------------------------------------------ WebShop by hand

WISH = "Find me a blue wool rug with size: 3x5, and price lower than 40.00 dollars"
INDEX = f"WebShop [SEP] Instruction: [SEP] {WISH} [SEP] Search"
HEAD = f"Instruction: [SEP] {WISH} [SEP] Back to Search [SEP]"
ITEM = (
    f"{HEAD} < Prev [SEP] size [SEP] 2x3 [SEP] 3x5 [SEP] Rug [SEP] Price: $9 [SEP] Rating: N.A. "
    "[SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
)


def page(*rows: tuple[str, str, str], number: int = 1) -> str:
    listed = "".join(f" [SEP] {asin} [SEP] {title} [SEP] {price}" for asin, title, price in rows)
    back = "< Prev [SEP] " if number > 1 else ""
    return f"{HEAD} Page {number} (Total results: 9) [SEP] {back}Next >{listed}"


ROWS = (
    ("B1", "Odd mat", "$9.0"),
    ("B2", "Blue mat", "$19.0"),
    ("B3", "Blue wool rug, premium", "$20.0"),
)


def shopping(first: str, *asked: tuple[str, str], played: Lines = ()) -> Branch:
    return branch_of(first, played, asked, WISH, WEBSHOP)


def kinds_of(branch: Branch) -> dict[str, int]:
    figures = audit([branch], WEBSHOP)
    assert figures is not None
    assert figures.commands == len(branch.steps)
    return dict(figures.by_kind)


@pytest.mark.parametrize(
    ("query", "leaked"),
    [("blue wool rug", 0), ("WOOL, rug's; 3x5", 0), ("blue wool rugs", 1), ("premium rug", 1)],
)
def test_searches_for_words_that_were_never_read(query: str, leaked: int) -> None:
    asked = (f"search[{query}]", page(*ROWS))
    assert kinds_of(shopping(INDEX, asked)) == ({QUERY: 1} if leaked else {})
    # "premium" is in a title that the student has read
    played = (("search[rug]", page(*ROWS)), ("click[back to search]", INDEX))
    beyond = leaked and query != "premium rug"
    assert kinds_of(shopping(INDEX, asked, played=played)) == ({QUERY: 1} if beyond else {})


@pytest.mark.parametrize(("asin", "leaked"), [("b1", 0), ("b2", 1), ("b3", 0)])
def test_products_whose_titles_do_not_tell_them(asin: str, leaked: int) -> None:
    asked = (f"click[{asin}]", ITEM)
    assert kinds_of(shopping(page(*ROWS), asked)) == ({NOT_APPARENT: 1} if leaked else {})


def test_a_better_title_counts_only_if_it_can_be_bought_and_was_not_opened() -> None:
    dear = (*ROWS[:2], ("B3", "Blue wool rug", "$41.0 to $60.0"))
    assert kinds_of(shopping(page(*dear), ("click[b2]", ITEM))) == {}
    opened = (("click[b3]", ITEM), ("click[< prev]", page(*ROWS)))
    assert kinds_of(shopping(page(*ROWS), ("click[b2]", ITEM), played=opened)) == {}
    # what was opened once was read: opening it again gives nothing away
    again = (("click[b2]", ITEM), ("click[< prev]", page(*ROWS)))
    assert kinds_of(shopping(page(*ROWS), ("click[b2]", ITEM), played=again)) == {}


def test_pages_that_were_turned_count_and_those_of_another_search_do_not() -> None:
    later = page(("B7", "Red mat", "$5"), ("B8", "Blue mat", "$5"), number=2)
    turned = (("click[next >]", later),)
    assert kinds_of(shopping(page(*ROWS), *turned, ("click[b8]", ITEM))) == {NOT_APPARENT: 1}
    anew = (("click[back to search]", INDEX), ("search[blue mat]", later))
    assert kinds_of(shopping(page(*ROWS), *anew, ("click[b8]", ITEM))) == {}


def test_a_product_that_is_not_on_the_page() -> None:
    assert kinds_of(shopping(page(*ROWS), ("click[b9]", ITEM))) == {NOT_SHOWN: 1}


@pytest.mark.parametrize(
    ("value", "leaked"),
    [("3x5", 0), ("2x3", 1), ("blue | white", 0), ("size 40.00", 1), ("with rug", 0), ("of", 1)],
)
def test_options_that_the_instruction_says_nothing_of(value: str, leaked: int) -> None:
    """The size asked for counts; the word "size", small words and the price limit do not."""
    branch = shopping(ITEM, (f"click[{value}]", ITEM), ("click[buy now]", "Thank you"))
    assert kinds_of(branch) == ({OPTION: 1} if leaked else {})


def test_marked_pages_read_like_plain_ones_and_markup_is_not_judged() -> None:
    def rich(text: str) -> str:
        buttons = ("Back to Search", "Next >", "B1", "B2", "B3")
        marked = [f"[button] {t} [button_]" if t in buttons else t for t in text.split(" [SEP] ")]
        return "\n".join(marked)

    branch = shopping(rich(page(*ROWS)), ("click[b2]", rich(ITEM)))
    assert kinds_of(branch) == {NOT_APPARENT: 1}
    assert audit([shopping("<html>Instruction: rug</html>", ("click[b2]", ITEM))], WEBSHOP) is None


# ------------------------------------------------------------------ all environments


def test_only_valid_branches_that_can_be_judged_count() -> None:
    branch = drawers(STRAIGHT)
    broken = replace(branch, valid=False, reasons=("refused",))
    odd = home(STRAIGHT, task="bring me a pen.", recs="drawer 1, drawer 2, drawer 3")
    alone = audit([branch], ALFWORLD)
    assert audit([broken, branch, odd], ALFWORLD) == alone
    assert audit([broken, odd], ALFWORLD) is None
    assert audit([], ALFWORLD) is None
    assert audit([branch], "Unknown-v0") is None


def test_figures_add_up_and_some_examples_are_kept() -> None:
    figures = audit([drawers(STRAIGHT)] * 7, ALFWORLD)
    assert figures is not None
    assert (figures.commands, figures.leaked, figures.share) == (21, 7, 1 / 3)
    assert len(figures.examples) == EXAMPLES == 5


def test_environments_of_others_join_with_a_rule() -> None:
    def rule(branch: Branch) -> list[Leak]:
        return [Leak(k, "odd", "why") for k in range(1, len(branch.steps), 2)]

    register_audit("Lamp-of-the-audit-test-v0", rule)
    register_audit("Lamp-of-the-audit-test-v0", rule)
    figures = audit([drawers(STRAIGHT)], "Lamp-of-the-audit-test-v0")
    example = LeakExample("task", 1, "open drawer 3", "why")
    assert figures == LeakFigures(3, 1, 1 / 3, {"odd": 1}, (example,))
    with pytest.raises(ValueError, match="'SeroALFWorld-v0' has a leak rule already"):
        register_audit(ALFWORLD, rule)


def failed_walks(env: gymnasium.Env[str, str], count: int) -> Iterator[tuple[Walk, int]]:
    """Failed random walks, each with the step of its root."""
    played = walks(env, PLAYERS["random"], seed=0)
    while count:
        walk = next(played)
        if not walk.success:
            draw = stream(0, rollout=walk.rollout, purpose="bank-root")
            yield walk, int(draw.integers(len(walk.snapshots)))
            count -= 1


def shares(env: gymnasium.Env[str, str], oracles: Sequence[Oracle[Any]], count: int) -> list[float]:
    """Each oracle's share, from the same roots."""
    roots, fork = list(failed_walks(env, count)), agent_envs.fork(env)
    found = []
    for oracle in oracles:
        branches = [
            run(fork, walk.snapshots[t], oracle, history=walk.history[:t], expected=walk.seen[t])
            for walk, t in roots
        ]
        spec = env.spec
        assert spec is not None
        figures = audit(branches, spec.id)
        assert figures is not None
        found.append(figures.share)
    return found


@pytest.mark.parametrize("data", ["generated:standard", "published"])
def test_an_oracle_that_knows_the_house_leaks_far_more_than_one_that_searches(
    data: str, request: pytest.FixtureRequest
) -> None:
    """Of 200 random roots: planner 0.071 and 0.059, explorer 0.010 and 0.015."""
    games: str | GameSet = data
    if data == "published":
        games = request.getfixturevalue("real_games")
    env = gymnasium.make(ALFWORLD, data=games)
    planner, explorer = shares(env, (ALFWorldPlanner(), ALFWorldExplorer(seed=0)), 200)
    assert planner > 0.04
    assert explorer < 0.02
    assert planner > 3 * explorer


def test_commands_that_depend_on_what_is_hidden_are_found() -> None:
    """What is to be counted, by its definition: of two houses that differ in what was not seen
    the planner says different things at a state that looks alike. One of both commands is a leak
    by the rule (354 of 354 in 600 households). The explorer never does that.
    """
    found = {True: 0, False: 0}
    count = full_count(60, 600)
    unwrapped: Any = gymnasium.make(ALFWORLD, data=f"generated:small?train={count}").unwrapped
    for pair in households(unwrapped.games, unwrapped.games.task_ids("train")):
        branches = [branch_in(twin, (), ALFWorldPlanner()) for twin in pair]
        k = parting(*branches)
        if k is not None:
            flagged = [k in [leak.k for leak in leaks(branch) or ()] for branch in branches]
            found[any(flagged)] += 1
        assert parting(*(branch_in(twin, (), ALFWorldExplorer()) for twin in pair)) is None
    assert sum(found.values()) > count // 3
    assert found[True] > 0.97 * sum(found.values())


def parting(left: Branch, right: Branch) -> int | None:
    """The first step of which the commands differ, if all that was seen before it is the same."""
    for k, (one, other) in enumerate(zip(left.steps, right.steps, strict=False)):
        if one.observation != other.observation:
            return None
        if one.action != other.action:
            return k
    return None


def test_a_shopper_that_knows_the_goal_leaks_and_the_rule_does_not(real_shop: Shop) -> None:
    """Of 200 random roots: goal 0.083, choice 0.070, rule 0."""
    env = gymnasium.make(WEBSHOP, data=real_shop)
    goal, choice, rule = shares(
        env, (WebShopGoalOracle(), ChoiceOracle(), RuleOracle()), full_count(60, 200)
    )
    assert rule == 0
    assert goal > choice > 0.02
