"""Thoughts that the policy itself samples, in chats and in the shop."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agent_envs.prompting import FieldTemplate
from tests.fakes import ByteTokenizer, ScriptedSampler
from tests.trainer import small
from tests.trainer.methods.sero_support import (
    brancher_of,
    grown,
    lookers,
    picked,
    reply_of,
    sero_config,
)
from tests.trainer.short_runs import run_config
from tests.trainer.test_webshop_training import first_come, shop_config
from trainer.branches.branching import Brancher, grow
from trainer.branches.records import GrownRoot, RootChoice, branch_metrics
from trainer.config import Config, ConfigError
from trainer.generation.base import GenerationRequest
from trainer.loop import train
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.rollouts.tokens import decode
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

# -------------------------------------------------------------- sampled thoughts


def _musing(requests: list[GenerationRequest] | None = None) -> small.CommandSampler:
    """Thinks of a number drawn from the request's own stream."""

    def choose(request: GenerationRequest, prompt: str) -> str:
        assert request.rng is not None
        if requests is not None:
            requests.append(request)
        return f"<think>{int(request.rng.integers(1000))}</think><action>look</action>"

    return small.CommandSampler(choose)


def test_sampled_thoughts_stand_before_the_forced_command() -> None:
    config = sero_config(think_mode="sampled")
    trajectories = lookers(config)
    requests: list[GenerationRequest] = []
    sampler = _musing(requests)
    roots = brancher_of(config, sampler=sampler).branch(0, trajectories, small.model())
    tok = small.tokenizer()
    thoughts = []
    for root in roots:
        assert root.gate == 1.0
        assert len(root.logz) == len(root.rows) == len(root.branch.steps)
        for row, z_row, step in zip(root.rows, root.z_rows, root.branch.steps, strict=True):
            thought, _, rest = reply_of(row, tok).partition("</think>")
            thoughts.append(thought.removeprefix("<think>"))
            assert thoughts[-1].isdigit()
            assert rest == f"<action>{step.action}</action><end>"
            assert picked(row, tok) == f"{step.action}</action><end>", "the thought is context"
            assert picked(z_row, tok) == step.action
    assert len(set(thoughts)) > 1
    assert sampler.sizes == [len(thoughts)], "one batch for all roots"
    assert {(r.max_new_tokens, r.temperature, r.greedy) for r in requests} == {(200, 1.0, False)}
    asked = [tuple(r.prompt_ids) for r in requests]
    assert asked == [row.ids[: len(p)] for row, p in zip(
        [row for root in roots for row in root.rows], asked, strict=True)]  # fmt: skip


def test_sampled_thoughts_follow_from_their_keys_alone() -> None:
    config = sero_config(think_mode="sampled")
    trajectories = lookers(config)
    model = small.model()

    def rows(found: list[Trajectory], seed: int = 0) -> dict[str, Any]:
        seeded = config.replace(**{"run.seed": seed})
        roots = brancher_of(seeded, sampler=_musing()).branch(0, found, model)
        return {found[root.choice.index].episode.uid: root.rows for root in roots}

    both = rows(trajectories)
    assert both == rows(trajectories)
    assert len(both) == 2
    swapped = [*trajectories[3:], *trajectories[:3]]
    assert rows(swapped) == both
    for uid, own in both.items():
        alone = [t for t in trajectories if t.episode.uid == uid]
        assert rows(alone) == {uid: own}
    moved = rows(trajectories, seed=1)
    assert any(
        small.tokenizer().decode(list(a.ids)) != small.tokenizer().decode(list(b.ids))
        for uid in both
        for a, b in zip(both[uid], moved[uid], strict=False)
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("<action>look</action>", "no_thought"),
        ("<think>on and on", "no_thought"),
        ("go</think><action>look</action>", "bad_thought"),
        ("<think><action>go</action></think>", "bad_thought"),
        ("<think>" + "on " * 250 + "</think>", "no_thought"),
    ],
)
def test_a_reply_without_a_usable_thought_makes_the_branch_invalid(reply: str, reason: str) -> None:
    config = sero_config(think_mode="sampled")
    sampler = small.CommandSampler(lambda request, prompt: reply)
    roots = brancher_of(config, sampler=sampler).branch(0, lookers(config), small.model())
    assert len(roots) == 2
    for root in roots:
        assert (root.valid, root.gate, root.rows, root.logz) == (False, 0.0, (), ())
        assert root.reasons == (reason,)
    metrics = branch_metrics(roots, config.auxiliary.sero, 2)
    assert metrics["sero/invalid_reasons"] == {reason: 2}


def test_targets_and_prompts_that_are_too_long_name_themselves() -> None:
    config = sero_config(think_mode="sampled")
    trajectories = lookers(config)[:3]
    brancher = brancher_of(config, sampler=_musing())
    (whole,) = brancher.branch(0, trajectories, small.model())
    longest = max(len(row.ids) for row in whole.rows)
    requests: list[GenerationRequest] = []
    tight = brancher_of(config, sampler=_musing(requests))
    tight.student = replace(tight.student, max_prompt_tokens=longest // 2)
    (root,) = tight.branch(0, trajectories, small.model())
    assert root.reasons == ("prompt_too_long",)
    assert all(len(request.prompt_ids) <= longest // 2 for request in requests)
    short = sero_config(think_mode="template").replace(**{"rollout.max_new_tokens": 8})
    assert grown(short, trajectories[0]).reasons == ("target_too_long",)
    plain = grown(sero_config(), trajectories[0])
    size = max(len(small.student(config).target(step.action).ids) for step in plain.branch.steps)
    for limit, reasons in ((size, ()), (size - 1, ("target_too_long",))):
        limited = sero_config().replace(**{"rollout.max_new_tokens": limit})
        assert grown(limited, trajectories[0]).reasons == reasons


def test_nothing_is_sampled_where_no_gate_is_open() -> None:
    config = sero_config(think_mode="sampled", pool="any")
    winner = small.CommandSampler(lambda request, prompt: small.walkthroughs()[prompt])
    sampler = _musing()
    trajectories = small.rollouts(config, winner)
    assert all(t.success for t in trajectories)
    trajectories = [replace(t, success=i > 0) for i, t in enumerate(trajectories[:3])]
    closed = config.replace(**{"auxiliary.sero.max_depth": 1})
    (root,) = brancher_of(closed, sampler=sampler).branch(0, trajectories, small.model())
    assert (root.gate, sampler.sizes) == (0.0, [])


def test_thoughts_need_somebody_to_think() -> None:
    config = sero_config(think_mode="sampled")
    with pytest.raises(ConfigError, match=r"think_mode=sampled.*nothing to sample with"):
        brancher_of(config)
    with pytest.raises(ValueError, match="needs the policy's replies"):
        _grown_with(config)


def _grown_with(config: Config) -> GrownRoot:
    brancher = brancher_of(config, sampler=_musing())
    return grow(
        RootChoice(0, 0), lookers(config)[0], brancher.env, brancher.oracle, brancher.student,
        brancher.section, 200,
    )  # fmt: skip


def test_a_run_samples_thoughts_with_its_own_policy(tmp_path: Any) -> None:
    config = run_config(
        tmp_path, auxiliary__sero={"think_mode": "sampled"}, run__iterations=1,
        env__max_steps=8, rollout__max_new_tokens=16,
    )  # fmt: skip
    (metrics,) = train(config, tmp_path / "run").metrics
    # A policy with random weights hardly ever ends a thought.
    assert metrics["sero/roots"] == 2
    reasons = metrics["sero/invalid_reasons"]
    assert reasons.get("no_thought", 0) + metrics["sero/gate_reasons"].get("active", 0) == 2


# -------------------------------------------------------------- chat and WebShop


def _chat(config: Config, games: Any, task: str, script: Any) -> tuple[Student, Trajectory]:
    student = small.student_for(config, ByteTokenizer())
    (trajectory,) = play(
        [Episode(task, "g", "t", 0)],
        [make_env(config.env, games, "train")],
        student,
        ScriptedSampler(ByteTokenizer(), script),
        PlaySettings(200, snapshots=True),
    )
    return student, trajectory


def _looking(prompt: str) -> str:
    return "<think></think><action>look</action>"


@pytest.mark.parametrize("world", ["alfworld", "webshop"])
def test_a_chat_prompt_asks_for_no_thought_where_none_is_trained(world: str) -> None:
    chat = {"prompt.template": "field", "prompt.max_prompt_tokens": 50_000}
    if world == "alfworld":
        config, games, script = sero_config().replace(**chat), small.games(), _looking
    else:
        config = shop_config(env__max_steps=8, rollout__max_new_tokens=200).replace(**chat)
        games, script = open_tasks(config.env), first_come
    task = split_tasks(config.env, games, "train")[0]
    student, trajectory = _chat(config, games, task, script)
    grown = {}
    for mode in ("empty", "none", "sampled"):
        one = config.replace(**{"auxiliary.sero.think_mode": mode})
        musing = ScriptedSampler(ByteTokenizer(), lambda _: "<think>hm</think><action>look</act")
        section = one.auxiliary.sero
        assert section is not None
        brancher = Brancher(one, section, make_env(one.env, games, "train"), student, musing)
        failed = replace(trajectory, success=False)
        (grown[mode],) = brancher.branch(0, [failed], _Uniform())
    tok = ByteTokenizer()
    assert len(grown["empty"].rows) == len(grown["none"].rows) == len(grown["sampled"].rows) > 0
    t = grown["empty"].choice.t
    own = trajectory.turns[t].prompt_ids
    assert grown["empty"].rows[0].ids[: len(own)] == own
    assert grown["sampled"].rows[0].ids[: len(own)] == own
    for with_it, without, step in zip(
        grown["empty"].rows, grown["none"].rows, grown["none"].branch.steps, strict=True
    ):
        asked, plain = decode(tok, with_it.ids), decode(tok, without.ids)
        assert asked.endswith(f"[assistant]<think></think><action>{step.action}</action>")
        assert plain.endswith(f"[assistant]<action>{step.action}</action>")
        assert "<think>" in asked
        assert "think" not in plain.lower().replace("thinkpad", "")
        # Up to the instruction the two prompts are one.
        cut = asked.index("Decide on the next command.")
        assert plain[:cut] == asked[:cut]
        assert "inside <action> and </action>." in plain[cut:]
    for row, step in zip(grown["sampled"].rows, grown["sampled"].branch.steps, strict=True):
        assert decode(tok, row.ids).endswith(f"<think>hm</think><action>{step.action}</action>")


class _Uniform(torch.nn.Module):
    """Every byte is as likely as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Any, use_cache: bool = False, logits_to_keep: Any = 0) -> Any:
        count = len(logits_to_keep) if isinstance(logits_to_keep, torch.Tensor) else 1
        return SimpleNamespace(logits=self.weight * torch.zeros(len(input_ids), count, 257))


def test_asking_for_no_thought_is_part_of_the_templates_hash() -> None:
    assert FieldTemplate().hash == FieldTemplate(think=True).hash
    assert FieldTemplate().hash != FieldTemplate(think=False).hash
