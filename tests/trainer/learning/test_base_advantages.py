"""Each base objective of a config is the pure function of its name, on recorded turns."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes import make_turn
from tests.trainer.hand_turns import hand, padded, token_rows
from tests.trainer.learning.base_numbers import (
    CASES,
    CRITICS,
    EVERY,
    GROUPED,
    PerTurn,
    advantages_of,
    config_of,
    values_for,
)
from trainer.config import Config, ConfigError, ObjectiveConfig, from_dict, load_config, resolve
from trainer.config.objective import PUBLISHED
from trainer.learning.base_advantages import (
    state_keys,
    turn_advantages,
)
from trainer.objectives import GroupError
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.graphgpo import graphgpo_advantages
from trainer.objectives.hgpo import hgpo_advantages
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
)
from trainer.rollouts.data import (
    make_segment,
    read_turns,
    write_turns,
)


@pytest.mark.parametrize(
    ("name", "settings", "expected"), CASES, ids=lambda v: str(v) if not callable(v) else ""
)
def test_an_objective_with_one_number_a_turn(
    name: str, settings: dict[str, Any], expected: PerTurn
) -> None:
    made = hand()
    config = config_of(name, **{f"objective__{k}": v for k, v in settings.items()})
    want = expected(made)
    assert want.abs().max() > 0.1
    assert torch.equal(turn_advantages(made.turns, config.objective, config.rollout), want)
    found = advantages_of(config, made.turns)
    assert [row.tolist() for row in found.tokens] == [
        [float(value)] * int(n) for value, n in zip(want, made.tokens, strict=True)
    ]
    assert (found.targets, found.target_mask, found.kl) == (None, None, None)


@pytest.mark.parametrize("name", ["gigpo", "hgpo"])
def test_alike_states_can_count_as_one(name: str) -> None:
    """`room p` and `room q` have ten of twelve letters in common."""
    made = hand()
    turns = [replace(turn, anchor=f"room {turn.anchor}") for turn in made.turns]
    pure = gigpo_advantages if name == "gigpo" else hgpo_advantages
    together = pure(*made.rows, torch.zeros_like(made.anchor))
    apart = pure(*made.rows, made.anchor)
    for similarity, want in ((10 / 12, together), (0.9, apart), (None, apart)):
        config = config_of(name, objective__anchors__similarity=similarity)
        found = turn_advantages(turns, config.objective, config.rollout)
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(together, apart, atol=0.1)


def test_alike_states_can_be_one_node_of_the_graph() -> None:
    """The text of a state is its observation and its commands, a line each."""
    made = hand()
    texts = [f"{state}\nlook\ntake {state}" for state in "pqr"] + ["terminal\nover"] * 2
    after = made.after.masked_fill(made.after == 99, 0)  # behind a win, where nothing is read
    want = graphgpo_advantages(
        *made.rows, made.anchor, after, made.success, similarity=0.8, texts=texts
    )
    config = config_of("graphgpo", objective__graph__similarity=0.8)
    found = turn_advantages(made.turns, config.objective, config.rollout)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    apart = graphgpo_advantages(*made.rows, made.anchor, after, made.success)
    assert float((found - apart).abs().max()) > 5e-4


def test_the_penalty_and_the_reward_are_those_of_the_config() -> None:
    made = hand()
    for name in ("grpo", "rloo", "gigpo", "hgpo", "graphgpo"):
        expected = next(f for n, settings, f in CASES if n == name and not settings)
        config = config_of(name, rollout__format_penalty=0.0, rollout__success_reward=3.0)
        found = turn_advantages(made.turns, config.objective, config.rollout)
        plain = replace(
            made, rewards=made.rewards * 0.3, valid=torch.ones_like(made.valid)
        )  # no malformed reply is no penalty
        if name == "graphgpo":
            want = graphgpo_advantages(
                *plain.rows, made.anchor, made.after, made.success, success_reward=3.0
            )
        else:
            want = expected(plain)
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_without_a_penalty_malformed_replies_are_like_others(name: str) -> None:
    made = hand()
    values = values_for(config_of(name), made)
    well = [replace(turn, format_valid=True) for turn in made.turns]
    free = config_of(name, rollout__format_penalty=0.0)
    found = torch.cat(advantages_of(free, made.turns, values).tokens)
    assert torch.equal(found, torch.cat(advantages_of(config_of(name), well, values).tokens))
    dear = config_of(name, rollout__format_penalty=5.0)
    assert not torch.allclose(
        torch.cat(advantages_of(dear, made.turns, values).tokens),
        torch.cat(advantages_of(config_of(name), made.turns, values).tokens),
        atol=0.1,
    )


def test_reinforce_pp_has_a_number_for_each_token() -> None:
    made, config = hand(), config_of("reinforce_pp")
    want, _ = reinforce_pp_advantages(made.rewards, made.valid, made.tid, made.mask)
    found = advantages_of(config, made.turns)
    assert torch.equal(torch.cat(found.tokens), want[made.mask])
    with pytest.raises(ValueError, match="reinforce_pp has no advantage of a turn"):
        turn_advantages(made.turns, config.objective, config.rollout)


CriticCase = tuple[str, dict[str, Any], dict[str, float]]
CRITIC_CASES: list[CriticCase] = [
    ("ppo", {}, {}),
    ("ppo", {"gamma": 0.9, "lam": 0.8}, {"gamma": 0.9, "lam": 0.8}),
    ("ppo_trajectory", {}, {}),
    ("ppo_trajectory", {"lam": 0.5}, {"lam": 0.5}),
    ("turn_gae", {}, {}),
    ("turn_gae", {"gamma": 0.0}, {"gamma": 0.0}),
]


@pytest.mark.parametrize(("name", "settings", "options"), CRITIC_CASES)
def test_an_objective_with_a_critic(
    name: str, settings: dict[str, Any], options: dict[str, float]
) -> None:
    made = hand()
    config = config_of(name, **{f"objective__critic__{k}": v for k, v in settings.items()})
    values = token_rows(made, 1, 5.0)
    found = advantages_of(config, made.turns, values)
    assert found.targets is not None
    assert found.target_mask is not None
    value_M_T, mask = padded(values, made.mask), made.mask
    if name == "turn_gae":
        first = torch.stack([row[0] for row in values])
        want = turn_gae(made.rewards, made.valid, made.tid, first, made.t, **options)
        for m, n in enumerate(made.tokens.tolist()):
            assert found.tokens[m].tolist() == [float(want.advantages[m])] * n
            assert float(found.targets[m][0]) == float(want.returns[m])
            # One value a turn: only what the critic says before the first token is trained.
            assert found.target_mask[m].tolist() == [True] + [False] * (n - 1)
        return
    if name == "ppo":
        want = ppo_turnwise(made.rewards, made.valid, made.tid, value_M_T, mask, **options)
    else:
        rows = (made.rewards, made.valid, made.tid, value_M_T, mask, made.t)
        want = ppo_trajectory(*rows, **options)
    assert torch.equal(torch.cat(found.tokens), want.advantages[mask])
    assert torch.equal(torch.cat(found.targets), want.returns[mask])
    assert all(bool(row.all()) for row in found.target_mask)
    assert [len(row) for row in found.target_mask] == made.tokens.tolist()


def test_no_base_objective_gives_zeros() -> None:
    made = hand()
    config = config_of("none", auxiliary__format_only={})
    found = advantages_of(config, made.turns)
    assert [row.tolist() for row in found.tokens] == [[0.0] * int(n) for n in made.tokens]


# ------------------------------------------------------------------------------ which turns


@pytest.mark.parametrize("name", EVERY)
def test_turns_from_disk_give_equal_numbers(name: str, tmp_path: Path) -> None:
    made = hand()
    config = config_of(
        name, objective__kl_coef=0.1, objective__kl_placement="reward", objective__kl_kind="k1",
        objective__overlong_buffer=10,
    )  # fmt: skip
    reference = token_rows(made, 2)
    write_turns(tmp_path / "turns.parquet", made.turns)
    read = read_turns(tmp_path / "turns.parquet")
    assert read == made.turns
    values = values_for(config, made)
    run = advantages_of(config, made.turns, values, reference)
    file = advantages_of(config, read, values, reference)
    assert torch.equal(torch.cat(run.tokens), torch.cat(file.tokens))
    assert run.kl == file.kl
    if run.targets is not None:
        assert file.targets is not None
        assert torch.equal(torch.cat(run.targets), torch.cat(file.targets))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_trajectories_and_turns_does_not_matter(name: str, seed: int) -> None:
    made = hand()
    config = config_of(name)
    values = values_for(config, made)
    plain = advantages_of(config, made.turns, values)
    order = list(range(len(made.turns)))
    random.Random(seed).shuffle(order)
    shuffled = advantages_of(
        config,
        [made.turns[i] for i in order],
        None if values is None else [values[i] for i in order],
    )
    for place, i in enumerate(order):
        torch.testing.assert_close(shuffled.tokens[place], plain.tokens[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_an_iteration_without_turns(name: str) -> None:
    config = config_of(name, objective__kl_coef=0.1, objective__kl_placement="reward")
    found = advantages_of(config, [], [], [])
    assert (found.tokens, found.kl) == ([], None)


@pytest.mark.parametrize("name", EVERY)
def test_left_out_turns_have_no_tokens_and_still_count_as_outcomes(name: str) -> None:
    """`mask_truncated` empties the segments of b and h, which ran out of steps."""
    made = hand()
    config = config_of(name, objective__mask_truncated=True)
    segments = [
        make_segment(t.prompt_ids, t.response_ids, mask=[t.tid not in "bh"] * len(t.response_ids))
        for t in made.turns
    ]
    values = values_for(config, made)
    kept = None if values is None else [
        row if turn.tid not in "bh" else row[:0]
        for row, turn in zip(values, made.turns, strict=True)
    ]  # fmt: skip
    masked = advantages_of(config, made.turns, kept, segments=segments)
    sizes = [len(row) for row in masked.tokens]
    assert sizes == [0 if t.tid in "bh" else len(t.response_ids) for t in made.turns]
    assert float(torch.cat(masked.tokens).abs().max()) > 0
    if name in ("grpo", "rloo", "gigpo", "hgpo", "graphgpo"):
        whole = advantages_of(config_of(name), made.turns, values)
        assert all(
            torch.equal(a, b) for a, b in zip(masked.tokens, whole.tokens, strict=True) if len(a)
        )


def test_states_of_graphgpo() -> None:
    made = hand()
    before, after = state_keys(made.turns)
    assert before[0] == ("p", "look", "take p")
    assert [before.index(key) for key in before[:6]] == [0, 1, 0, 1, 4, 1]
    place = {(turn.tid, turn.t): i for i, turn in enumerate(made.turns)}
    assert after[place["b", 0]] == before[place["b", 1]]
    assert after[place["b", 3]] == before[place["b", 2]], "cut off in a state like any other"
    assert after[place["h", 1]] == before[place["h", 1]]
    assert after[place["d", 0]] == ("terminal", "over"), "the env ended it: nothing leaves it"
    other = replace(made.turns[0], admissible=("take p",))
    assert state_keys([other])[0] != before[:1], "what can be done is part of the state"
    turned = replace(made.turns[0], admissible=("look", "take p"))
    assert state_keys([turned])[0] == before[:1], "its order is not"
    # The same turn in another trajectory or group follows its own.
    assert state_keys([*made.turns[:2], replace(made.turns[1], uid="x")])[1][0] == before[1]


def test_a_cut_off_trajectory_is_judged_by_the_state_it_ended_in() -> None:
    """Both lose in their second step from q; one ends one step before the win, one far from it."""
    won = [
        make_turn(tid="w", t=t, observation=s, admissible=(s,), done=s == "r", success=s == "r",
                  stop_reason="success" if s == "r" else None)
        for t, s in enumerate("pqr")
    ]  # fmt: skip
    lost = [
        make_turn(tid=f"l{i}", t=t, observation=s, admissible=(s,), done=s == "q",
                  stop_reason="step_limit" if s == "q" else None,
                  next_observation=end, next_admissible=(end,) if s == "q" else ())
        for i, end in enumerate("rp")
        for t, s in enumerate("pq")
    ]  # fmt: skip
    config = config_of("graphgpo", objective__graph__episode_weight=0.0)
    found = turn_advantages([*won, *lost], config.objective, config.rollout)
    near, far = float(found[4]), float(found[6])
    # Leaving q: two turns to r (d = 1, R = 10 * 0.1^2), one back to p (d = 3, R = 10 * 0.1^4).
    values = torch.tensor([0.1, 0.1, 0.001], dtype=torch.float64)
    z = (values - values.mean()) / (values.std() + 1e-6)
    assert [float(found[1]), near, far] == pytest.approx(z.tolist(), rel=1e-9)


# ------------------------------------------------------------------------------ the config


def test_published_settings_hold_unless_the_config_says_otherwise() -> None:
    def objective(**section: Any) -> ObjectiveConfig:
        return from_dict({"objective": section}).objective

    plain = objective()
    assert (plain.name, plain.clip_low, plain.clip_high) == ("grpo", 0.2, 0.2)
    assert (plain.dual_clip, plain.aggregation, plain.ratio) == (3.0, "token-mean", "token")
    dr = objective(name="dr_grpo")
    assert (dr.use_std, dr.aggregation) == (False, "dr_grpo")
    dapo = objective(name="dapo")
    assert (dapo.clip_low, dapo.clip_high, dapo.dynamic_rounds) == (0.2, 0.28, 10)
    assert (dapo.kl_coef, dapo.aggregation) == (0.0, "token-mean")
    gspo = objective(name="gspo")
    assert (gspo.ratio, gspo.clip_low, gspo.clip_high) == ("sequence", 3e-4, 4e-4)
    assert (gspo.dual_clip, gspo.aggregation) == (None, "seq-mean-token-mean")
    own = objective(name="dapo", clip_high=0.3, dynamic_rounds=0)
    assert (own.clip_high, own.dynamic_rounds) == (0.3, 0)
    for name in PUBLISHED:
        config = from_dict({"objective": {"name": name}})
        assert from_dict(resolve(config)) == config
        # From a command line, and by replacing.
        assert load_config({}, {"objective.name": name}) == config
        assert Config().replace(**{"objective.name": name}).objective == config.objective


def test_another_name_leaves_the_settings_of_the_former_behind() -> None:
    gspo = Config().replace(**{"objective.name": "gspo", "objective.kl_coef": 0.1})
    grpo = gspo.replace(**{"objective.name": "grpo"}).objective
    assert grpo == Config().replace(**{"objective.kl_coef": 0.1}).objective
    tuned = gspo.replace(**{"objective.clip_low": 0.1})
    dapo = tuned.replace(**{"objective.name": "dapo", "objective.dynamic_rounds": 3}).objective
    assert (dapo.clip_low, dapo.clip_high, dapo.dynamic_rounds) == (0.1, 0.28, 3)
    assert (dapo.ratio, dapo.dual_clip) == ("token", 3.0)
    assert gspo.replace(**{"objective.name": "gspo"}) == gspo


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"name": "ppo", "dynamic_rounds": 2}, r"dynamic_rounds=2.*objective\.name=ppo has no gr"),
        ({"name": "reinforce_pp", "drop_constant_groups": True}, r"drop_constant_groups.*has none"),
        ({"name": "none", "drop_constant_groups": True}, r"drop_constant_groups.*name=none has n"),
        ({"ratio": "sequence"}, r"ratio=sequence has no dual clip, found dual_clip=3\.0"),
        ({"ratio": "sequence", "dual_clip": None}, r"found aggregation=token-mean"),
        ({"name": "gspo", "aggregation": "token-mean"}, r"found aggregation=token-mean"),
        ({"overlong_buffer": 25}, r"overlong_buffer=25 .*rollout\.max_new_tokens=24"),
        ({"overlong_buffer": 0}, r"overlong_buffer=0 must be positive"),
        ({"dynamic_rounds": -1}, r"dynamic_rounds=-1 must be at least 0"),
        ({"critic": {"lam": 1.5}}, r"critic\.lam=1\.5 must lie in \[0, 1\]"),
        ({"critic": {"clip": 0}}, r"critic\.clip=0\.0 must be positive"),
        ({"anchors": {"gamma": 2}}, r"anchors\.gamma=2\.0 must lie in \[0, 1\]"),
        ({"graph": {"omega": 0}}, r"graph\.omega=0\.0 must be positive"),
    ],
)
def test_settings_that_clash_are_refused_by_name(objective: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"objective": objective})


@pytest.mark.parametrize("name", ["reinforce_pp", *CRITICS])
def test_without_groups_one_rollout_of_a_task_is_enough(name: str) -> None:
    config = config_of(name, rollout__rollouts=1)
    made = hand()
    turns = [replace(turn, uid=turn.tid) for turn in made.turns]
    values = values_for(config, made)
    alone = torch.cat(advantages_of(config, turns, values).tokens)
    assert torch.equal(alone, torch.cat(advantages_of(config, made.turns, values).tokens))
    assert alone.abs().max() > 0.1


@pytest.mark.parametrize("name", GROUPED)
def test_o19_a_batch_without_groups_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"objective.name={name} groups of one"):
        config_of(name, rollout__rollouts=1)
    turns = [replace(turn, uid=turn.tid) for turn in hand().turns]
    with pytest.raises(GroupError, match="have a group id of their own"):
        advantages_of(config_of(name), turns)


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_s_values_are_needed(name: str) -> None:
    with pytest.raises(ValueError, match=f"objective.name={name} needs the critic's values"):
        advantages_of(config_of(name), hand().turns)
