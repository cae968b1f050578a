"""OPD: three forms of one gradient, teachers from elsewhere, and a depth that grows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.methods.distilling import (
    LIMITS,
    config_of,
    gradient,
    learned,
    method_of,
    prepared,
    teacher_folder,
    term_gradient,
    trajectories_of,
    turns_of,
    whole_step,
)
from trainer.auxiliary.divergence import divergence
from trainer.config import ConfigError
from trainer.methods.distillation.opd import within_depth
from trainer.methods.distillation.outside_teacher import OutsideTeacher, check_vocabulary
from trainer.models.policy import collate, token_distributions, token_logprobs
from trainer.models.tiny import ModelFolderError, save_policy, train_tokenizer
from trainer.rollouts.data import Turn, segments_from_turns


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return turns_of(trajectories_of(config_of()))


@pytest.fixture(scope="module")
def few(turns: list[Turn]) -> list[Turn]:
    """The first turns of three trajectories: 3, 2 and 1 of them."""
    return [turns[i] for i in (0, 1, 2, 5, 6, 10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teacher_folder(tmp_path_factory.mktemp("teachers"))


def _opd(**section: Any) -> Any:
    return config_of(objective__name="none", auxiliary__opd=section)


def _own(model: Any, turns: list[Turn]) -> tuple[Tensor, Tensor]:
    batch = collate(segments_from_turns(turns))
    return token_logprobs(model, batch).logprobs, batch.mask_B_T


@pytest.mark.parametrize("baseline", [False, True])
def test_the_loss_form_has_the_gradient_of_its_definition(
    few: list[Turn], folder: str, baseline: bool
) -> None:
    """(S - T + b) dS, averaged over tokens; b is minus the KL of the policy that sampled."""
    behaviour, model, teacher = small.model(2), small.model(), small.model(1)
    config = _opd(teacher=folder, baseline=baseline)
    method = prepared(config, behaviour, few)
    assert not method.has_pass(whole_step(few)), "it needs no pass of its own"
    found = term_gradient(config, method, model, few)

    student, mask = _own(model, few)
    scores = _own(teacher, few)[0].detach()
    factor = student.detach() - scores
    if baseline:
        batch = collate(segments_from_turns(few))
        s, t = (token_distributions(m, batch).detach() for m in (behaviour, teacher))
        factor[mask] -= (s.exp() * (s - t)).sum(-1)
    model.zero_grad()
    ((factor * student)[mask].sum() / mask.sum()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("combine", ["replace", "add"])
def test_the_advantage_form_adds_or_replaces(few: list[Turn], folder: str, combine: str) -> None:
    config = config_of(
        auxiliary__opd={
            "teacher": folder, "form": "advantage", "combine": combine, "weight": 0.5,
            "depth": {"growth": 0, "final": 1},
        }
    )  # fmt: skip
    model = small.model()
    method = prepared(config, model, few)
    base = [torch.full((len(turn.response_ids),), 2.0 + i) for i, turn in enumerate(few)]
    shaped = method.shaped(base)
    kept = combine == "add"
    assert [row.tolist() for row in shaped] == [(row * kept).tolist() for row in base]

    batch = collate(segments_from_turns(few))
    new = token_logprobs(model, batch).logprobs.detach()
    adv = torch.where(batch.mask_B_T, 3.0, 0.0)
    found = method.token_term(whole_step(few)).advantages(adv, new, batch, range(len(few)))
    expected = adv + 0.5 * (_own(small.model(1), few)[0].detach() - new)
    assert [turn.t for turn in few].count(0) == 3, "three turns lie within the depth"
    for row, turn in enumerate(few):
        inside = expected[row] if turn.t == 0 else adv[row]
        torch.testing.assert_close(found[row][batch.mask_B_T[row]], inside[batch.mask_B_T[row]])
    assert found.dtype == adv.dtype
    term = method.token_term(whole_step(few))
    assert [term.needs(i) for i in range(len(few) + 1)] == [t.t == 0 for t in few] + [False]


def test_with_replaced_advantages_no_reward_reaches_the_policy(
    turns: list[Turn], folder: str
) -> None:
    lost = [replace(turn, success=False) for turn in turns]
    ends: dict[str, list[Any]] = {}
    for combine in ("replace", "add"):
        section = {"teacher": folder, "form": "advantage", "combine": combine, "weight": 0.01}
        for some in (turns, lost):
            model = small.model()
            learned(config_of(auxiliary__opd=section), model, some)
            ends.setdefault(combine, []).append(small.weights(model))
    assert small.same(*ends["replace"])
    assert not small.same(*ends["add"])


def test_the_advantage_form_needs_a_policy_loss() -> None:
    with pytest.raises(ConfigError, match=r"auxiliary\.opd\.form=advantage.*Use form=loss"):
        method_of(_opd(form="advantage"), small.model())
    with pytest.raises(ConfigError, match=r"auxiliary\.opd\.baseline=true.*form=exact"):
        _opd(form="exact", baseline=True)


@pytest.mark.parametrize(
    ("kind", "beta", "top_k"), [("rkl", 0.5, None), ("fkl", 0.5, 7), ("gjs", 0.2, None)]
)
def test_the_exact_form_is_the_mean_divergence(
    few: list[Turn], folder: str, kind: Any, beta: float, top_k: int | None
) -> None:
    model = small.model()
    config = _opd(teacher=folder, form="exact", divergence=kind, beta=beta, top_k=top_k)
    method = prepared(config, model, few)
    batch = collate(segments_from_turns(few))
    s, t = (token_distributions(m, batch).detach() for m in (model, small.model(1)))
    expected = divergence(s, t, kind=kind, beta=beta, top_k=top_k).mean()
    step = whole_step(few)
    assert method.has_pass(step)
    assert method.token_term(step) is None
    assert method.backward(model, step, LIMITS) == pytest.approx(float(expected), rel=1e-4)
    place = batch.labels_B_T[batch.mask_B_T][:, None]
    gap = (s - t).gather(-1, place).mean()
    assert method.metrics()["opd/gap_mean"] == pytest.approx(float(gap), rel=1e-3)


@pytest.mark.parametrize("form", ["loss", "advantage"])
def test_sampled_forms_go_to_the_teacher(few: list[Turn], folder: str, form: str) -> None:
    """For given tokens the loss form descends on (S - T) ** 2 / 2."""
    model, teacher = small.model(), small.model(1)
    before = token_gap(model, teacher, few)
    config = config_of(
        optim__steps=1, optim__lr=3e-3, objective__dual_clip=None, objective__clip_high=10.0,
        objective__clip_low=0.99, optim__old_logprobs="recompute",
        auxiliary__opd={"teacher": folder, "form": form},
    )  # fmt: skip
    learned(config, model, few, iterations=8)
    assert token_gap(model, teacher, few) < 0.8 * before


def token_gap(model: Any, teacher: Any, turns: list[Turn]) -> float:
    (student, mask), (scores, _) = _own(model, turns), _own(teacher, turns)
    return float((student - scores)[mask].detach().abs().mean())


@pytest.mark.parametrize("kind", ["rkl", "fkl", "gjs"])
def test_exact_forms_go_to_the_teacher(few: list[Turn], folder: str, kind: str) -> None:
    model = small.model()
    config = _opd(teacher=folder, form="exact", divergence=kind)
    losses = [line["loss/opd"] for line in learned(config, model, few, iterations=6)]
    assert losses[-1] < 0.7 * losses[0]


def test_the_measured_gap_is_the_sampled_reverse_kl(few: list[Turn], folder: str) -> None:
    method = prepared(_opd(teacher=folder), small.model(), few)
    scores, mask = _own(small.model(1), few)
    behaviour = [x for turn in few for x in turn.logprobs]
    expected = sum(behaviour) / len(behaviour) - float(scores[mask].detach().mean())
    assert method.metrics()["opd/gap_mean"] == pytest.approx(expected, rel=1e-5)


# ------------------------------------------------------------------------------ teachers


def test_the_policy_at_the_start_is_the_teacher_without_a_folder(few: list[Turn]) -> None:
    model = small.model()
    config = config_of(auxiliary__opd={})
    method = method_of(config, model)
    start = small.weights(model)
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)
    method.finished_step(model)
    method.finished_iteration(9, model)
    assert small.same(small.weights(method.teacher.of(model)), start)
    assert method.state()


def test_a_model_folder_is_loaded_once_and_stays_as_it_is(few: list[Turn], folder: str) -> None:
    model = small.model()
    method = method_of(_opd(teacher=folder), model)
    assert isinstance(method.teacher, OutsideTeacher)
    teacher = method.teacher.of(model)
    assert small.same(small.weights(teacher), small.weights(small.model(1)))
    assert not any(p.requires_grad for p in teacher.parameters())
    assert not teacher.training
    method.finished_step(model)
    method.finished_iteration(0, model)
    assert method.teacher.of(model) is teacher
    assert small.same(small.weights(teacher), small.weights(small.model(1)))
    assert method.state() == {}
    method.load_state({})
    with pytest.raises(ValueError, match="another teacher"):
        method.load_state({"teacher/x": torch.zeros(1)})


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    other = train_tokenizer(["go to desk 1", "you see a lamp"], 300)
    save_policy(tmp_path / "other", small.model(), other)
    with pytest.raises(ConfigError, match=r"auxiliary\.opd\.teacher=.*another tokenizer") as found:
        method_of(_opd(teacher=str(tmp_path / "other")), small.model())
    assert f"the policy's ({len(small.tokenizer())} tokens)" in str(found.value)
    assert f"the teacher's ({len(other)} tokens)" in str(found.value)
    with pytest.raises(ModelFolderError, match="holds no policy"):
        method_of(_opd(teacher=str(tmp_path / "nothing")), small.model())


class _Vocabulary:
    def __init__(self, **ids: int) -> None:
        self.ids = ids

    def get_vocab(self) -> dict[str, int]:
        return self.ids


def test_vocabularies_are_compared_token_by_token() -> None:
    check_vocabulary(_Vocabulary(a=0, b=1), _Vocabulary(b=1, a=0), "x")
    with pytest.raises(ConfigError, match=r"1 tokens differ.*'b' is id 1 in .*id 2 in"):
        check_vocabulary(_Vocabulary(a=0, b=1), _Vocabulary(a=0, b=2), "x")
    with pytest.raises(ConfigError, match=r"2 tokens differ.*'b' is id 1 in .*missing in"):
        check_vocabulary(_Vocabulary(a=0, b=1), _Vocabulary(a=0, c=1), "x")


# ------------------------------------------------------------------------------ depth


def _turn(base: Turn, tid: str, t: int) -> Turn:
    return replace(base, tid=tid, t=t)


def test_depth_counts_from_either_end(few: list[Turn]) -> None:
    rows = [_turn(few[0], tid, t) for tid, t in (("a", 1), ("b", 0), ("a", 0), ("a", 2))]
    assert within_depth(rows, 1, "forward") == [False, True, True, False]
    assert within_depth(rows, 2, "forward") == [True, True, True, False]
    assert within_depth(rows, 1, "backward") == [False, True, False, True]
    assert within_depth([], 1, "forward") == []


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        ({"growth": 4}, [1, 2, 4, 6, 8, 8]),  # the end is env.max_steps, 8
        ({"growth": 4, "final": 3, "start": 2}, [2, 2, 2, 2, 3, 3]),
        ({"growth": 0, "final": 5}, [5, 5, 5, 5, 5, 5]),
        ({"growth": 2, "start": 20}, [20, 20, 20, 20, 20, 20]),
        ({}, [1, 1, 1, 1, 1, 1]),  # 100 iterations
    ],
)
def test_depth_grows_with_the_iterations(
    turns: list[Turn], depth: Any, expected: list[int]
) -> None:
    config = _opd(depth=depth, weight=0.0)
    for iteration, k in enumerate(expected):
        method = prepared(config, small.model(), turns[:3], iteration)
        assert method.depth == k
        assert method.metrics()["opd/depth"] == k
        assert len(method.pairs) == min(k, 3)
    assert prepared(config, small.model(), turns[:3], 100).depth == max(
        depth.get("final", 8), depth.get("start", 1)
    )


def test_only_turns_within_the_depth_are_trained(turns: list[Turn], folder: str) -> None:
    three = turns[:3]
    config = _opd(teacher=folder, depth={"growth": 0, "final": 1, "direction": "backward"})
    method = prepared(config, small.model(), three)
    assert set(method.pairs) == {2}
    assert method.metrics()["opd/turn_share"] == pytest.approx(1 / 3)
    model = small.model()
    alone = prepared(_opd(teacher=folder), model, three[2:])
    torch.testing.assert_close(
        term_gradient(config, method, model, three),
        term_gradient(config, alone, model, three[2:]),
        rtol=1e-3, atol=1e-5,
    )  # fmt: skip
