from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

import agent_envs
from tests.trainer import small
from trainer import rng
from trainer.branches import branching
from trainer.branches.branching import Brancher, grow, select_roots, step_rows
from trainer.branches.records import RootChoice, branch_metrics
from trainer.config import ConfigError
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.sero import Sero
from trainer.rollouts.data import segments_from_turns
from trainer.rollouts.rollout import Episode, PlaySettings, Trajectory, play
from trainer.worlds.environments import ALFWORLD
from trainer.worlds.oracles import make_oracle
from trainer.worlds.tasks import make_env, split_tasks


def _brancher(**overrides: object) -> Brancher:
    config = small.small_config(auxiliary__sero={}, env__max_steps=12, **overrides)
    return Brancher(
        config,
        config.auxiliary.sero,
        make_env(config.env, small.games(), "train"),
        small.student(config),
    )


def _grow(brancher: Brancher, choice: RootChoice, trajectory: Trajectory) -> branching.GrownRoot:
    return grow(
        choice,
        trajectory,
        brancher.env,
        brancher.oracle,
        brancher.student,
        brancher.config.auxiliary.sero,
        brancher.config.rollout.max_new_tokens,
    )


@pytest.mark.parametrize("name", ["best", "no_such_module:make", "json:make", ":make"])
def test_an_oracle_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        make_oracle(name, 1.0, ALFWORLD)


def test_roots_come_from_failed_rollouts_and_from_their_own_stream() -> None:
    brancher = _brancher(rollout__tasks=6)
    trajectories = small.rollouts(brancher.config, small.half_expert(0.9))
    outcomes = {t.episode.uid: set() for t in trajectories}  # type: ignore[var-annotated]
    for t in trajectories:
        outcomes[t.episode.uid].add(t.success)
    assert {True, False} in outcomes.values(), "a mixed group is needed"
    eligible = [uid for uid, seen in outcomes.items() if False in seen]
    roots = select_roots(trajectories, brancher.config.auxiliary.sero, 0, 0)
    assert [trajectories[r.index].episode.uid for r in roots] == eligible
    for root in roots:
        assert not trajectories[root.index].success
        assert 0 <= root.t < len(trajectories[root.index].turns)
    # A group's draw depends on its key alone, not on the groups beside it.
    last = [t for t in trajectories if t.episode.uid == eligible[-1]]
    offset = trajectories.index(last[0])
    alone = select_roots(last, brancher.config.auxiliary.sero, 0, 0)
    assert [(r.index + offset, r.t) for r in alone] == [(roots[-1].index, roots[-1].t)]
    u1, u2 = rng.stream(0, 0, eligible[-1], purpose=rng.ROOT).random(2)
    failed = [t for t in last if not t.success]
    chosen = failed[int(u1 * len(failed))]
    assert trajectories[roots[-1].index] is chosen
    assert roots[-1].t == int(u2 * len(chosen.turns))


def test_all_rollouts_and_steps_are_chosen_about_equally_often() -> None:
    config = small.small_config(auxiliary__sero={})
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))[:3]
    counts: Counter[tuple[int, int]] = Counter()
    for iteration in range(600):
        (root,) = select_roots(trajectories, config.auxiliary.sero, 0, iteration)
        counts[root.index, root.t] += 1
    # 18 states, 33.3 each, standard deviation 5.6
    assert len(counts) == 18
    assert max(abs(n - 600 / 18) for n in counts.values()) < 5 * 5.7


def test_a_branch_is_what_the_student_would_have_seen() -> None:
    """Rows of a branch equal, id for id, a rollout driven by the same commands."""
    brancher = _brancher()
    trajectories = small.rollouts(brancher.config, small.half_expert(0.3))
    index = next(i for i, t in enumerate(trajectories) if not t.success)
    trajectory = trajectories[index]
    root = _grow(brancher, RootChoice(index, 3), trajectory)
    assert root.gate == 1.0
    assert len(root.rows) == len(root.branch.steps) >= 2
    script = [turn.command for turn in trajectory.turns[:3]]
    script += [step.action for step in root.branch.steps]
    replay = iter(script)
    (driven,) = play(
        [trajectory.episode],
        [make_env(brancher.config.env, small.games(), "train")],
        brancher.student,
        small.CommandSampler(lambda request, prompt: next(replay)),
        PlaySettings(64),
    )
    assert driven.success
    assert len(driven.turns) == len(script)
    for row, turn in zip(root.rows, driven.turns[3:], strict=True):
        assert row.ids[: len(turn.prompt_ids)] == turn.prompt_ids
        # The forced reply is the one the sampler was made to give, token for token.
        assert row.ids[len(turn.prompt_ids) :] == turn.response_ids


def test_loss_covers_command_closing_tag_and_end_and_z_the_command_alone() -> None:
    brancher = _brancher()
    trajectories = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    root = _grow(brancher, RootChoice(0, 0), trajectories[0])
    tok = small.tokenizer()
    for row, z_row, step in zip(root.rows, root.z_rows, root.branch.steps, strict=True):
        assert row.ids == z_row.ids
        trained = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        command = [i for i, keep in zip(z_row.ids, z_row.loss_mask, strict=True) if keep]
        assert tok.decode(trained) == f"{step.action}</action><end>"
        assert tok.decode(command) == step.action
        assert row.temperature == z_row.temperature == 1.0


def test_a_branch_disturbs_no_rollout_environment() -> None:
    brancher = _brancher()
    config = brancher.config
    task = split_tasks(config.env, small.games(), "train")[0]
    env = make_env(config.env, small.games(), "train")
    commands = iter(["look", "inventory"])
    (trajectory,) = play(
        [Episode(task, "g", "t", 0)],
        [env],
        brancher.student,
        small.CommandSampler(lambda request, prompt: next(commands, "look")),
        PlaySettings(64, snapshots=True),
    )
    env.reset(options={"task_id": task})
    env.step("look")
    before = agent_envs.snapshot(env)
    assert _grow(brancher, RootChoice(0, 1), trajectory).gate == 1.0
    assert agent_envs.snapshot(env) == before


@pytest.mark.parametrize("field", ["observation", "admissible"])
def test_a_restore_that_differs_from_the_record_is_invalid(field: str) -> None:
    brancher = _brancher()
    (trajectory, *_) = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    changed = {"observation": "You see an apple 1.", "admissible": ("look",)}[field]
    turns = (replace(trajectory.turns[0], **{field: changed}), *trajectory.turns[1:])
    root = _grow(brancher, RootChoice(0, 0), replace(trajectory, turns=turns))
    assert (root.valid, root.gate, root.gate_reason) == (False, 0.0, "invalid")
    assert root.reasons == ("restore_mismatch",)
    assert root.rows == root.z_rows == ()
    assert root.branch.steps == ()


def test_a_plan_that_does_not_fit_the_shared_horizon_gives_no_gate() -> None:
    brancher = _brancher()
    (trajectory, *_) = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    root = _grow(brancher, RootChoice(0, 11), trajectory)
    assert (root.gate, root.reasons) == (0.0, ("oracle_over_budget",))
    assert root.G_O == 0.0


def test_a_successful_rollout_leaves_nothing_to_gain() -> None:
    brancher = _brancher(auxiliary__sero__pool="any")
    sampler = small.CommandSampler(lambda request, prompt: small.walkthroughs()[prompt])
    (trajectory, *_) = small.rollouts(brancher.config, sampler)
    assert trajectory.success
    root = _grow(brancher, RootChoice(0, 0), trajectory)
    assert (root.valid, root.G_pi, root.G_O, root.gate) == (True, 1.0, 1.0, 0.0)
    assert root.gate_reason == "oracle_not_better"
    assert root.rows == ()


def test_a_prompt_beyond_the_limit_makes_the_branch_invalid() -> None:
    brancher = _brancher()
    (trajectory, *_) = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    longest = max(len(row.ids) for row in _grow(brancher, RootChoice(0, 0), trajectory).rows)
    tight = replace(brancher.student, max_prompt_tokens=longest // 2)
    brancher.student = tight
    root = _grow(brancher, RootChoice(0, 0), trajectory)
    assert (root.valid, root.gate, root.rows) == (False, 0.0, ())
    assert "prompt_too_long" in root.reasons


def test_z_is_the_geometric_mean_of_the_command_under_the_frozen_policy() -> None:
    brancher = _brancher()
    trajectories = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    model = small.model()
    model.train()
    before = small.weights(model)
    roots = brancher.branch(0, trajectories, model)
    assert model.training, "the model's mode is the caller's"
    assert small.same(before, small.weights(model))
    import torch

    for root in roots:
        assert len(root.logz) == len(root.rows) > 0
        for row, logz in zip(root.z_rows, root.logz, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([row.ids])).logits[0].double()
            logp = torch.log_softmax(logits, -1)
            own = [float(logp[i - 1, row.ids[i]]) for i, keep in enumerate(row.loss_mask) if keep]
            assert math.isclose(logz, sum(own) / len(own), rel_tol=1e-5)


def test_rows_are_normalised_by_the_roots_of_their_own_step() -> None:
    brancher = _brancher(auxiliary__sero__w_min=0.0)
    trajectories = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    roots = brancher.branch(0, trajectories, small.model())
    assert len(roots) == 2
    both = step_rows(roots, brancher.config.auxiliary.sero)
    alone = step_rows(roots[:1], brancher.config.auxiliary.sero)
    assert len(alone) == len(roots[0].rows)
    for one, two in zip(alone, both, strict=False):
        assert one.segment == two.segment
        assert math.isclose(one.coefficient, 2 * two.coefficient, rel_tol=1e-12)
    # by hand: g = 1, w_0 = 1, w_1 = z_0, token mean
    z0 = math.exp(roots[0].logz[0])
    assert math.isclose(alone[0].coefficient, 1 / roots[0].rows[0].trained)
    assert math.isclose(alone[1].coefficient, z0 / roots[0].rows[1].trained)


def test_light_rows_are_pruned_and_their_mass_is_reported() -> None:
    brancher = _brancher(
        auxiliary__sero__w_min=0.5, auxiliary__sero__rule="depth", auxiliary__sero__delta=0.6
    )
    trajectories = small.rollouts(brancher.config, small.CommandSampler(lambda r, p: "look"))
    roots = brancher.branch(0, trajectories, small.model())
    config = brancher.config.auxiliary.sero
    assert len(step_rows(roots, config)) == 2 * len(roots)  # weights 1 and 0.6 stay
    metrics = branch_metrics(roots, config, 2)
    mass = sum(0.6**k for root in roots for k in range(2, len(root.rows)))
    assert math.isclose(metrics["sero/pruned_mass"], mass)
    assert metrics["sero/rows"] == 2 * len(roots)
    assert metrics["sero/gate_reasons"] == {"active": 2}


def test_unknown_oracle_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'plannner'"):
        _brancher(auxiliary__sero__oracle="plannner")


def test_the_eligible_share_is_of_the_groups_at_hand() -> None:
    """Sampling in rounds may keep another number of groups than `rollout.tasks`."""
    brancher = _brancher(rollout__tasks=6)
    config = brancher.config
    played = small.rollouts(config, small.half_expert(0.9))
    kept = sorted({t.episode.uid for t in played})[:3]
    trajectories = [t for t in played if t.episode.uid in kept]
    # One of them has nothing but successes: no root.
    trajectories = [replace(t, success=t.episode.uid == kept[0]) for t in trajectories]
    setup = Setup(config, brancher.student, small.model(), lambda: brancher.env)
    method = Sero(setup, config.auxiliary.sero)
    turns = [turn for t in trajectories for turn in t.turns]
    method.prepare(Rollouts(0, turns, segments_from_turns(turns), trajectories), small.model())
    metrics = method.metrics()
    assert metrics["sero/roots"] == 2
    assert metrics["sero/eligible_share"] == 2 / 3
    method.prepare(Rollouts(1, (), (), ()), small.model())
    assert method.metrics()["sero/eligible_share"] is None
