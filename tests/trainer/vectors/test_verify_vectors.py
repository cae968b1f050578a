"""The vector verifier: what passes, and above all what must fail."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from trainer.vectors.verify import Result, VectorFileError, matches, verify

VECTORS = Path(__file__).parents[2] / "vectors"
BASE = VECTORS / "base_objectives.json"
AUX = VECTORS / "aux_objectives.json"


def dump(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def base_file() -> dict:
    return json.loads(BASE.read_text(encoding="utf-8"))


def only_case(method: str, name: str) -> dict:
    """A base file that holds one case."""
    data = base_file()
    (case,) = (c for c in data["vectors"][method] if c["name"] == name)
    return {"scenarios": data["scenarios"], "vectors": {method: [copy.deepcopy(case)]}}


@pytest.mark.parametrize(
    ("path", "only", "passed", "total"),
    [
        (BASE, "grpo/*", 42, 454),
        (BASE, "dr_grpo/*", 28, 454),
        (BASE, "policy_loss/*", 28, 454),
        (BASE, "kl/*", 12, 454),
        (BASE, "projection/*", 11, 454),
        (AUX, "sero.*", 54, 177),
        (AUX, "sero.loss/*", 11, 177),
    ],
)
def test_our_vectors_pass(path, only, passed, total):
    result = verify(path, only)
    assert result.failures == ()
    assert (result.passed, result.failed, result.excluded) == (passed, 0, total - passed)
    assert result.ok


@pytest.mark.parametrize(("path", "total"), [(BASE, 454), (AUX, 177)])
def test_every_case_of_the_files_passes(path, total):
    result = verify(path)
    assert result.failures == ()
    assert (result.passed, result.failed, result.excluded) == (total, 0, 0)


def test_an_unknown_method_is_a_failure_unless_excluded(tmp_path):
    data = only_case("grpo", "basic/paper")
    data["vectors"]["telepathy"] = [
        {"name": "x", "scenario": None, "params": {}, "expected": 1.0, "catches": ""}
    ]
    result = verify(dump(tmp_path, data))
    assert (result.passed, result.failed, result.excluded) == (1, 1, 0)
    assert result.unknown == {"telepathy": 1}
    assert result.failures[0].id == "telepathy/x"
    assert "no implementation of telepathy" in result.failures[0].got
    assert not result.ok
    assert verify(tmp_path / "vectors.json", "grpo/*") == Result(1, 0, 1, ())


def test_an_unknown_auxiliary_method_is_a_failure(tmp_path):
    case = {"id": "a/b", "objective": "a", "fn": "gate", "inputs": {}, "expected": 0.0}
    result = verify(dump(tmp_path, {"cases": [case]}))
    assert (result.passed, result.failed) == (0, 1)


@pytest.mark.parametrize("row", [0, 5, 11])
def test_a_wrong_number_anywhere_fails(tmp_path, row):
    data = only_case("grpo", "basic/code")
    data["vectors"]["grpo"][0]["expected"][row] += 1e-5
    result = verify(dump(tmp_path, data))
    assert (result.passed, result.failed) == (0, 1)
    (failure,) = result.failures
    assert failure.id == "grpo/basic/code"
    assert abs(failure.got[row] - failure.expected[row]) > 9e-6


def test_too_few_values_fail(tmp_path):
    data = only_case("grpo", "basic/code")
    data["vectors"]["grpo"][0]["expected"].pop()
    assert verify(dump(tmp_path, data)).failed == 1


@pytest.mark.parametrize(
    ("method", "name", "edit"),
    [
        ("grpo", "basic/code", {"pen": 0.2}),
        ("grpo", "basic/code", {"ddof": 0}),
        ("grpo", "basic/code", {"use_std": False}),
        ("grpo", "basic/code", {"eps": 1e-3}),
        ("grpo", "basic/code", {"flavor": "paper"}),
        ("policy_loss", "case4/token-mean", {"hi": 0.28}),
        ("policy_loss", "case3/token-mean", {"lo": 0.5}),
        ("policy_loss", "case5/clip_higher", {"c": None}),
        ("policy_loss", "case1/token-mean", {"how": "seq-mean-token-mean"}),
        ("kl", "case3/k3", {"kind": "k2"}),
        ("projection", "p9", {"tail": 20}),
        ("grpo", "basic/code", {"temperature": 2.0}),
    ],
)
def test_every_parameter_matters(tmp_path, method, name, edit):
    data = only_case(method, name)
    path = dump(tmp_path, data)
    assert verify(path).ok
    data["vectors"][method][0]["params"].update(edit)
    assert verify(dump(tmp_path, data)).failed == 1


def test_parameters_that_nobody_reads_fail(tmp_path):
    case = {
        "id": "sero.gate/x",
        "objective": "sero.gate",
        "fn": "gate",
        "inputs": {"G_pi": 0, "G_O": 1, "slope": 3},
        "expected": 1.0,
    }
    result = verify(dump(tmp_path, {"cases": [case]}))
    assert "slope" in result.failures[0].got


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", 0.1), ("rows", []), ("diag", {"n_root": 9}), ("grad_logp", [[[0.0]]])],
)
def test_every_part_of_a_sero_case_is_compared(tmp_path, field, value):
    cases = json.loads(AUX.read_text(encoding="utf-8"))["cases"]
    (case,) = (c for c in cases if c["id"] == "sero.loss/masked_tags")
    assert verify(dump(tmp_path, {"cases": [case]})).ok
    case["expected"][field] = value
    assert verify(dump(tmp_path, {"cases": [case]})).failed == 1


def test_nothing_checked_is_not_a_success():
    result = verify(BASE, "gpro/*")
    assert (result.passed, result.failed, result.excluded) == (0, 0, 454)
    assert not result.ok


def test_comparison_rules():
    inf, nan = float("inf"), float("nan")
    assert matches(1.0 + 5e-7, 1.0, rtol=1e-6)
    assert not matches(1.0 + 5e-6, 1.0, rtol=1e-6)
    assert matches(5e-10, 0, rtol=1e-6)
    assert not matches(5e-9, 0, rtol=1e-6)
    assert matches(-inf, -inf, rtol=1e-6)
    assert not matches(inf, -inf, rtol=1e-6)
    assert not matches(1e300, inf, rtol=1e-6)
    assert matches(nan, nan, rtol=1e-6)
    assert not matches(nan, 0.0, rtol=1e-6)
    assert not matches(0.0, nan, rtol=1e-6)
    assert not matches(None, 0.0, rtol=1e-6)
    assert not matches(0.0, None, rtol=1e-6)
    assert matches(None, None, rtol=1e-6)
    assert not matches({"a": 1}, {"a": 1, "b": 2}, rtol=1e-6)
    assert matches({"a": 1, "b": 2}, {"a": 1}, rtol=1e-6)
    assert not matches([1, 2], [1], rtol=1e-6)
    assert not matches("look ", "look", rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "neither"),
        ('{"meta": {}}', "neither"),
        ('{"cases": [{"objective": "sero.gate"}]}', "does not follow the layout"),
        ('{"vectors": {"grpo": [{"params": {}}]}}', "does not follow the layout"),
        ('{"vectors": {"grpo": [3]}}', "does not follow the layout"),
    ],
)
def test_unreadable_files_are_typed_errors(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(VectorFileError, match=message):
        verify(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(VectorFileError, match=r"absent\.json"):
        verify(tmp_path / "absent.json")
