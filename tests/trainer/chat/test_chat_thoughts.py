"""SERO in a conversation: prompts that ask for no thought, and thoughts of the policy's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.chat import templates, world
from tests.trainer.short_runs import resumed_like_whole
from trainer.branches.branching import THOUGHT, Brancher
from trainer.branches.records import GrownRoot
from trainer.branches.targets import branch_prompts, branch_views
from trainer.branches.thoughts import ThinkingBrancher
from trainer.config import Config, ConfigError
from trainer.generation.base import Generation, GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.methods.protocol import Setup
from trainer.methods.registry import make_methods
from trainer.models.packing import chains
from trainer.rng import stream
from trainer.rollouts.rollout import Student, Trajectory
from trainer.rollouts.tokens import decode
from trainer.worlds.tasks import make_env

ALL = [templates.CHATML, templates.HEADERS, templates.DROPS_THOUGHTS]
ASKS = "Think the situation through first"


def _config(**sero: Any) -> Config:
    return world.config(
        auxiliary__sero=sero, env__max_steps=10, rollout__max_new_tokens=64, rollout__tasks=2
    )


def _lookers(c: Config, learner: Student, template: str) -> list[Trajectory]:
    """Nobody wins, and every reply has a thought."""
    talker = world.Talker(lambda r: f"<think>{r.rng.integers(99)}</think><action>look</action>",
                          template)  # fmt: skip
    return world.rollouts(c, learner, talker)


def _musing(asked: list[GenerationRequest], template: str) -> world.Talker:
    """Thinks of a number drawn from the request's own stream."""

    def say(request: GenerationRequest) -> str:
        asked.append(request)
        assert request.rng is not None
        return f"<think>{int(request.rng.integers(1000))}</think><action>look</action>"

    return world.Talker(say, template)


def _brancher(c: Config, learner: Student, sampler: Any) -> Brancher:
    env = make_env(c.env, small.games(), "train")
    (method,) = make_methods(Setup(c, learner, world.model(), lambda: env, sampler))
    return method.brancher


def _grown(
    template: str = templates.CHATML, say: Any = None, **sero: Any
) -> tuple[list[GrownRoot], list[Trajectory], Student, list[GenerationRequest]]:
    c = _config(**{"think_mode": "sampled", **sero})
    learner = world.student_of(c, template)
    found, asked = _lookers(c, learner, template), []
    sampler = _musing(asked, template) if say is None else world.Talker(say, template)
    brancher = _brancher(c, learner, sampler)
    assert type(brancher) is (ThinkingBrancher if "think_mode" not in sero else Brancher)
    return brancher.branch(0, found, world.model()), found, learner, asked


# ----------------------------------------------------------------------- own thoughts


@pytest.mark.parametrize("template", ALL)
def test_a_step_is_asked_behind_the_targets_of_the_steps_before_it(template: str) -> None:
    roots, found, learner, asked = _grown(template)
    prompts = {tuple(r.prompt_ids) for r in asked}
    thoughts: set[str] = set()
    for root in roots:
        assert root.gate == 1.0
        assert len(root.rows) == len(root.z_rows) == len(root.logz) == len(root.branch.steps)
        assert len(root.rows) >= 2
        turns = found[root.choice.index].turns[: root.choice.t]
        said = learner.conversation(turns)
        views = branch_views(root.branch)
        for view, step, row, z_row in zip(
            views, root.branch.steps, root.rows, root.z_rows, strict=True
        ):
            prompt = learner.prompt(view, said)
            assert prompt in prompts
            assert row.ids[: len(prompt)] == prompt
            reply = decode(learner.tokenizer, row.ids[len(prompt) :])
            thought, _, rest = reply.removeprefix("<think>").partition("</think>")
            assert thought.isdigit()
            thoughts.add(thought)
            assert rest == f"<action>{step.action}</action><|im_end|>"
            kept = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
            assert decode(learner.tokenizer, kept) == f"{step.action}</action><|im_end|>"
            kept = [i for i, keep in zip(z_row.ids, z_row.loss_mask, strict=True) if keep]
            assert decode(learner.tokenizer, kept) == step.action
            said = learner.answered(said, view, prompt, row.ids[len(prompt) :])
        if template != templates.DROPS_THOUGHTS:
            assert len(chains([row.ids for row in root.rows])) == 1
    assert len(thoughts) > 2
    assert len(asked) == sum(len(root.rows) for root in roots)


def test_thoughts_come_from_streams_of_their_group_and_step() -> None:
    roots, found, learner, _ = _grown()
    for root in roots:
        uid = found[root.choice.index].episode.uid
        for k, row in enumerate(root.rows):
            number = int(stream(0, 0, uid, 0, k, THOUGHT).integers(1000))
            # Earlier thoughts of the branch and of the rollout are in the prompt.
            assert f"<think>{number}</think>" in decode(learner.tokenizer, row.ids)
    alone = []
    for root in roots:
        uid = found[root.choice.index].episode.uid
        own = [t for t in found if t.episode.uid == uid]
        c = _config(think_mode="sampled")
        sampler = _musing([], templates.CHATML)
        alone += _brancher(c, learner, sampler).branch(0, own, world.model())
    assert [root.rows for root in alone] == [root.rows for root in roots]


def test_steps_are_asked_together_and_a_session_is_a_branch() -> None:
    c = _config(think_mode="sampled")
    learner = world.student_of(c)
    found = _lookers(c, learner, templates.CHATML)
    asked: list[GenerationRequest] = []
    sizes = []

    class Counting(world.Talker):
        def generate(self, requests: Any) -> Any:
            sizes.append(len(requests))
            return super().generate(requests)

    sampler = Counting(_musing(asked, templates.CHATML).say)
    roots = _brancher(c, learner, sampler).branch(0, found, world.model())
    lengths = [len(root.rows) for root in roots]
    assert len(roots) == 2
    assert sizes == [sum(n > k for n in lengths) for k in range(max(lengths))]
    assert {(r.max_new_tokens, r.temperature, r.greedy) for r in asked} == {(64, 1.0, False)}
    assert len({r.session for r in asked}) == len(roots)


def test_kept_keys_and_values_change_no_thought() -> None:
    """The forced command is not what was sampled, so only part of what is kept fits."""
    c = _config(think_mode="sampled")
    learner, policy = world.student_of(c), world.model()
    found = _lookers(c, learner, templates.CHATML)
    opened, closed = (learner.tokenizer.encode(tag) for tag in ("<think>", "</think>"))
    made = []
    for tokens in (100_000, 0):
        sampler = HFSampler(policy, learner.stop_ids, pad_id=learner.pad_id, session_tokens=tokens)

        class Thinking:
            """Puts what the policy samples into a thought."""

            def generate(self, requests: Any, sampler: HFSampler = sampler) -> list[Generation]:
                replies = sampler.generate([replace(r, max_new_tokens=8) for r in requests])
                bodies = [[i for i in r.ids if i < min(opened)] for r in replies]
                whole = [(*opened, *body, *closed) for body in bodies]
                return [Generation(ids, (-1.0,) * len(ids), "length") for ids in whole]

        made.append(_brancher(c, learner, Thinking()).branch(0, found, policy))
        assert (len(sampler.store) > 0) == (tokens > 0)
    assert all(root.gate == 1.0 for root in made[0])
    assert [root.rows for root in made[0]] == [root.rows for root in made[1]]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("<action>look</action>", "no_thought"),
        ("go</think><action>look</action>", "bad_thought"),
        ("<think>" + "on " * 250 + "</think>", "no_thought"),
        ("<think>" + "on " * 29 + "</think><action>look</action>", "target_too_long"),
    ],
)
def test_a_step_without_a_target_ends_its_branch(reply: str, reason: str) -> None:
    calls = []

    def say(request: GenerationRequest) -> str:
        calls.append(request)
        return reply if len(calls) > 2 else "<think>1</think><action>look</action>"

    roots, *_ = _grown(say=say)
    assert len(roots) == 2
    for root in roots:
        assert (root.valid, root.gate, root.rows, root.logz) == (False, 0.0, (), ())
        assert root.reasons == (reason,)
    assert len(calls) == 4, "both roots, and both of the second step"


def test_a_prompt_that_outgrew_its_limit_ends_its_branch() -> None:
    roots, found, learner, _ = _grown()
    chosen = roots[0]
    longest = max(len(row.ids) for row in chosen.rows)
    c = _config(think_mode="sampled").replace(**{"prompt.max_prompt_tokens": longest - 20})
    short = replace(learner, max_prompt_tokens=longest - 20)
    own = [t for t in found if t.episode.uid == found[chosen.choice.index].episode.uid]
    asked: list[GenerationRequest] = []
    (root,) = _brancher(c, short, _musing(asked, templates.CHATML)).branch(0, own, world.model())
    assert root.reasons == ("prompt_too_long",)
    assert 0 < len(asked) < len(chosen.rows)
    assert all(len(r.prompt_ids) <= longest - 20 for r in asked)


def test_all_prompts_at_once_are_refused_where_thoughts_come_later() -> None:
    roots, found, learner, _ = _grown()
    (root, *_) = roots
    section = _config(think_mode="sampled").auxiliary.sero
    assert section is not None
    before = found[root.choice.index].turns[: root.choice.t]
    with pytest.raises(ConfigError, match="step by step"):
        branch_prompts(root.branch, learner, section, before)


# ------------------------------------------------------------------- no thoughts at all


@pytest.mark.parametrize("template", ALL)
def test_without_thoughts_the_rules_do_not_ask_for_one(template: str) -> None:
    c = _config(think_mode="none").replace(**{"prompt.template": "field"})
    learner = world.student_of(c, template)
    found = _lookers(c, learner, template)
    roots = _brancher(c, learner, None).branch(0, found, world.model())
    assert [root.gate for root in roots] == [1.0, 1.0]
    assert any(root.choice.t > 0 for root in roots)
    tok = learner.tokenizer
    for root in roots:
        turns = found[root.choice.index].turns[: root.choice.t]
        messages: list[dict[str, str]] = []
        for turn in turns:
            view = replace(branch_views(root.branch)[0], observation=turn.observation,
                           admissible=turn.admissible, step=turn.t)  # fmt: skip
            messages.append(dict(learner.template.message(view)))
            messages.append({"role": "assistant", "content": turn.reply})
        for view, step, row in zip(
            branch_views(root.branch), root.branch.steps, root.rows, strict=True
        ):
            messages.append(dict(learner.template.message(view)))
            asking = messages[0]["content"]
            assert ASKS in asking
            begin = asking.index("Think the situation")
            plain = asking.replace(asking[begin : asking.index("</action>.")], "PLAIN")
            assert "</think>" not in plain
            told = decode(tok, row.ids)
            assert ASKS not in told
            shown = [{"role": "user", "content": _plainly(asking)}, *messages[1:]]
            text = tok.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
            assert told == f"{text}<action>{step.action}</action><|im_end|>"
            messages.append({"role": "assistant", "content": f"<action>{step.action}</action>"})
        trained_ids = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert decode(tok, trained_ids) == f"{step.action}</action><|im_end|>"
        if template != templates.DROPS_THOUGHTS:
            assert len(chains([row.ids for row in root.rows])) == 1
            for turn in turns:  # replies as they were sampled
                assert turn.reply in decode(tok, root.rows[0].ids)


def _plainly(asking: str) -> str:
    """The rules as `field` words them without a thought."""
    instruction = (
        "Decide on the next command. Think the situation through first, inside <think> and "
        "</think>. Then give exactly one of the possible commands, inside <action> and </action>."
    )
    assert instruction in asking
    plain = (
        "Decide on the next command. Give exactly one of the possible commands, inside <action> "
        "and </action>."
    )
    return asking.replace(instruction, plain)


def test_compact_never_asks_so_its_conversation_stays() -> None:
    c = _config(think_mode="none")
    learner = world.student_of(c)
    found = _lookers(c, learner, templates.CHATML)
    for root in _brancher(c, learner, None).branch(0, found, world.model()):
        at = found[root.choice.index].turns[root.choice.t]
        assert root.rows[0].ids[: len(at.prompt_ids)] == at.prompt_ids


# ------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("mode", ["none", "sampled"])
def test_two_iterations_and_a_resume(mode: str, tmp_path: Path) -> None:
    c = world.config(
        world.policy(tmp_path / "policy"),
        auxiliary__sero={"think_mode": mode},
        run__save_turns=True,
        run__iterations=2,
        rollout__rollouts=2,
        env__max_steps=4,
        eval__tasks=1,
    )
    lines = resumed_like_whole(c, tmp_path)
    if mode == "none":
        assert sum(line["sero/rows"] for line in lines) > 0
    else:  # an untrained policy ends no thought
        reasons = [line["sero/invalid_reasons"] for line in lines]
        assert any(found.get("no_thought", 0) > 0 for found in reasons)
