"""SERO and its relatives in a conversation, and whole runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agent_envs.prompting import ChatTemplate
from tests.trainer import small
from tests.trainer.chat import templates, world
from tests.trainer.short_runs import resumed_like_whole
from trainer.branches.branching import Brancher, grow
from trainer.branches.records import RootChoice
from trainer.branches.targets import branch_prompts
from trainer.config import ConfigError
from trainer.loop import train
from trainer.methods.imitation.oracle_rows import branch_rows
from trainer.methods.privileged import prompt_view
from trainer.models.packing import chains
from trainer.rollouts.data import read_turns, segments_from_turns
from trainer.rollouts.tokens import decode
from trainer.supervised.warmstart import demonstrate, segments
from trainer.worlds.tasks import make_env, split_tasks

ALL = [templates.CHATML, templates.HEADERS, templates.DROPS_THOUGHTS]
COMMANDS = ["look", "inventory", "go to nowhere 1"]
THOUGHT = "the mug may be there"


def _root(template: str, at: int = 3, **sero: object):
    c = world.config(auxiliary__sero=sero, env__max_steps=12)
    learner = world.student(template)
    talker = world.Talker(world.scripted(COMMANDS, THOUGHT), template)
    trajectory = world.one_episode(talker, learner, steps=12)
    brancher = Brancher(c, c.auxiliary.sero, make_env(c.env, small.games(), "train"), learner)
    root = grow(
        RootChoice(0, at), trajectory, brancher.env, brancher.oracle, learner, brancher.section, 64
    )
    assert root.gate == 1.0
    assert len(root.rows) == len(root.branch.steps) >= 2
    return root, trajectory, learner


@pytest.mark.parametrize("template", ALL)
@pytest.mark.parametrize("at", [0, 3])
def test_a_branch_goes_on_from_the_conversation_as_it_was_sampled(template, at):
    root, trajectory, learner = _root(template, at)
    # Driven by the same replies, a rollout is shown the very same prompts.
    replies = [turn.response_ids for turn in trajectory.turns[:at]]
    replies += [row.ids[len(turn_ids) :] for row, turn_ids in _pairs(root, trajectory, learner)]
    texts = iter([learner.reply_text(ids) for ids in replies])
    talker = world.Talker(lambda request: next(texts), template)
    driven = world.one_episode(talker, learner, steps=12)
    assert driven.success
    for row, turn in zip(root.rows, driven.turns[at:], strict=True):
        assert row.ids == (*turn.prompt_ids, *turn.response_ids)
    if template != templates.DROPS_THOUGHTS:
        before = trajectory.turns[at]
        assert root.rows[0].ids[: len(before.prompt_ids)] == before.prompt_ids
        assert len(chains([row.ids for row in root.rows])) == 1


def _pairs(root, trajectory, learner):
    turns = trajectory.turns[: root.choice.t]
    prompts = branch_prompts(root.branch, learner, world.config(auxiliary__sero={}).auxiliary.sero,
                             turns)  # fmt: skip
    return zip(root.rows, prompts, strict=True)


def test_earlier_commands_of_the_oracle_have_the_form_of_their_targets():
    root, _, learner = _root(templates.CHATML, think_mode="template", think_text="I go on.")
    text = decode(learner.tokenizer, root.rows[-1].ids)
    for step in root.branch.steps:
        assert f"<think>I go on.</think><action>{step.action}</action><|im_end|>" in text


def test_the_turns_before_the_root_are_needed_in_full():
    root, trajectory, learner = _root(templates.CHATML)
    section = world.config(auxiliary__sero={}).auxiliary.sero
    with pytest.raises(ValueError, match="begins after 3 turns"):
        branch_prompts(root.branch, learner, section, trajectory.turns[:2])
    with pytest.raises(ConfigError, match="think_mode=sampled"):
        branch_prompts(
            root.branch, learner, replace(section, think_mode="sampled"), trajectory.turns[:3]
        )


def test_rows_of_other_oracle_methods_hold_the_conversation_too():
    root, trajectory, learner = _root(templates.CHATML)
    rows, reasons = branch_rows(root.branch, learner, 64, trajectory.turns[:3])
    assert not reasons
    assert [row.segment() for row in rows] == list(root.rows)


def test_prompts_hold_what_was_seen_and_said_and_nothing_else():
    root, trajectory, learner = _root(templates.CHATML)
    first = trajectory.turns[0]
    template = learner.template
    assert isinstance(template, ChatTemplate)
    expected = "<|im_start|>system\nBe helpful.<|im_end|>\n"
    for turn in trajectory.turns[:3]:
        view = replace(prompt_view(turn), history=())
        expected += f"<|im_start|>user\n{template.message(view)['content']}<|im_end|>\n"
        expected += f"<|im_start|>assistant\n{turn.reply}<|im_end|>\n"
    steps = root.branch.steps
    for k, step in enumerate(steps):
        view = replace(
            prompt_view(first), observation=step.observation, admissible=step.admissible, step=3 + k
        )
        expected += f"<|im_start|>user\n{template.message(view)['content']}<|im_end|>\n"
        expected += "<|im_start|>assistant\n"
        reply = f"<think></think><action>{step.action}</action><|im_end|>"
        assert decode(learner.tokenizer, root.rows[k].ids) == expected + reply
        expected += reply + "\n"


@pytest.mark.parametrize("template", [templates.CHATML, templates.DROPS_THOUGHTS])
def test_o25_two_iterations_of_grpo_and_sero_and_a_resume(tmp_path, template):
    path = world.policy(tmp_path / "policy", template)
    c = world.config(
        path,
        auxiliary__sero={},
        run__save_turns=True,
        run__iterations=2,
        rollout__rollouts=2,
        env__max_steps=4,
        eval__tasks=2,
    )
    resumed_like_whole(c, tmp_path)
    assert (tmp_path / "whole/roots.jsonl").read_text()
    result = json.loads((tmp_path / "whole/eval/000002_valid_seen.json").read_text())
    assert result["context"] == "chat"
    assert result["history_length"] is None
    turns = read_turns(tmp_path / "whole/turns/000000.parquet")
    found = chains([segment.ids for segment in segments_from_turns(turns)])
    trajectories = len({(t.uid, t.tid) for t in turns})
    assert trajectories == 4
    # Rollouts of one task that begin alike are still chains of their own.
    assert len(found) == trajectories or template == templates.DROPS_THOUGHTS


@pytest.mark.parametrize(
    "section",
    [
        {"dagger": {}},
        {"sft": {}},
        {"corrections": {}},
        {"luffy": {}},
        {"chord": {}},
        {"step_dpo": {}},
        {"expert_iteration": {}},
        {"format_only": {}},
        {"gkd": {"source": "oracle"}},
        {"opd": {"form": "loss"}},
    ],
    ids=lambda section: next(iter(section)),
)
def test_methods_that_need_no_view_run_in_chat(tmp_path, section):
    path = world.policy(tmp_path / "policy")
    (name, values), *_ = section.items()
    c = world.config(
        path,
        run__iterations=1,
        rollout__rollouts=2,
        env__max_steps=10,
        **{f"auxiliary__{name}": values},
    )
    (line,) = train(c, tmp_path / "run").metrics
    if name in ("dagger", "sft", "corrections", "luffy", "chord"):
        assert line[f"{name}/rows"] > 0, "an untrained policy leaves the oracle something to say"


def test_demonstrations_are_whole_conversations():
    c = world.config(warmstart__random_share=0.3, env__max_steps=15)
    learner = world.student()
    env = make_env(c.env, small.games(), "train")
    tasks = split_tasks(c.env, small.games(), "train")
    shown = [demonstrate(env, task, c.warmstart, i) for i, task in enumerate(tasks)]
    assert any(demonstration.injected for demonstration in shown)
    for demonstration in shown:
        rows = segments([demonstration], learner)
        assert len(rows) == len(demonstration.decisions)
        # A random command may be the one that the oracle wanted.
        assert len(demonstration.steps) >= len(rows) + demonstration.injected
        assert len(chains([row.ids for row in rows])) == 1
        text = decode(learner.tokenizer, rows[-1].ids)
        last = demonstration.decisions[-1][0].step
        for _, command in demonstration.steps[: last + 1]:
            assert f"<action>{command}</action>" in text
        for row, (_, command) in zip(rows, demonstration.decisions, strict=True):
            own = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
            reply = f"<think></think><action>{command}</action><|im_end|>"
            assert decode(learner.tokenizer, own) == reply
