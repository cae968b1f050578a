"""Check the objectives against a file of numeric vectors.

Two layouts are known. *Base* files hold `scenarios` (groups of trajectories) and
`vectors[method]`, a list of `{name, scenario, params, expected}`; *auxiliary* files hold `cases`,
a list of `{id, objective, fn, inputs, expected}`. Infinities and NaN may be written as strings in
auxiliary files.

Everything is computed in float64 and compared at atol 1e-9 with rtol 1e-6 (base) or 1e-8
(auxiliary). A method that is not known, a parameter that is not understood and an exception are
failures, never skips: passing means that the formula was evaluated.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainer.vectors.methods import AUX_METHODS, BASE_METHODS
from trainer.vectors.params import Params

ATOL = 1e-9
BASE_RTOL = 1e-6
AUX_RTOL = 1e-8

Json = Any


class VectorFileError(ValueError):
    """Raised when a file cannot be read as either vector layout."""


class UnknownMethod(LookupError):
    """Raised with a method that has no implementation; its cases are reported as failures."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One case that does not hold: expected value, and what came out (or the error)."""

    id: str
    expected: Json
    got: Json
    unknown: bool = False
    """Whether its method has no implementation."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of `verify`.

    Attributes:
        passed, failed: cases evaluated.
        excluded: cases that `only` leaves out.
        failures: one entry per failed case.
        unknown: how many of the failed cases belong to each method that has no implementation.
    """

    passed: int
    failed: int
    excluded: int
    failures: tuple[Failure, ...]
    unknown: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if something was checked and all of it holds."""
        return self.failed == 0 and self.passed > 0


def verify(path: str | Path, only: str | None = None) -> Result:
    """Evaluate every case of a vector file.

    Args:
        path: a JSON file in one of the two layouts.
        only: shell glob on `method/name` (base) or the case's `id` (auxiliary), e.g. "grpo/*" or
            "sero.*"; case-sensitive, and `*` also matches "/". None: all cases.

    Returns:
        Counts and failures; see `Result.ok` for the verdict.

    Raises:
        VectorFileError: the file is missing, is not JSON or has neither layout.
    """
    passed = excluded = 0
    failures: list[Failure] = []
    unknown: Counter[str] = Counter()
    for case_id, compute, expected, rtol in _cases(_load(Path(path))):
        if only is not None and not fnmatchcase(case_id, only):
            excluded += 1
            continue
        try:
            got = compute()
        except UnknownMethod as error:
            unknown[str(error)] += 1
            got = f"no implementation of {error}"
            failures.append(Failure(case_id, expected, got, unknown=True))
            continue
        except Exception as error:  # any error is this case's failure, the others still count
            failures.append(Failure(case_id, expected, f"{type(error).__name__}: {error}"))
            continue
        if matches(got, expected, rtol=rtol):
            passed += 1
        else:
            failures.append(Failure(case_id, expected, got))
    return Result(passed, len(failures), excluded, tuple(failures), dict(unknown))


def matches(got: Json, expected: Json, *, rtol: float, atol: float = ATOL) -> bool:
    """Whether a computed value agrees with an expected one, through lists and mappings.

    Numbers agree if |got - expected| <= atol + rtol * |expected|; infinities by sign, NaN only
    with NaN. Every expected key must be present; further computed keys are allowed. Lists agree
    in length and entry by entry.
    """
    if isinstance(expected, Mapping):
        return isinstance(got, Mapping) and all(
            key in got and matches(got[key], value, rtol=rtol, atol=atol)
            for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(got, list | tuple)
            and len(got) == len(expected)
            and all(matches(g, e, rtol=rtol, atol=atol) for g, e in zip(got, expected, strict=True))
        )
    if isinstance(expected, int | float) and isinstance(got, int | float):
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        if math.isinf(expected) or math.isinf(got):
            return got == expected
        return abs(got - expected) <= atol + rtol * abs(expected)
    return type(got) is type(expected) and bool(got == expected)


def _load(path: Path) -> Mapping[str, Json]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VectorFileError(f"Cannot read the vector file {path}: {error.strerror}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise VectorFileError(f"{path} is not JSON: {error}.") from error
    if not isinstance(data, dict) or not ("vectors" in data or "cases" in data):
        raise VectorFileError(
            f"{path} has neither 'vectors' (base layout) nor 'cases' (auxiliary layout)."
        )
    return data


def _cases(
    data: Mapping[str, Json],
) -> Iterator[tuple[str, Callable[[], Json], Json, float]]:
    """(id, computation, expected value, relative tolerance) of every case."""
    try:
        scenarios = data.get("scenarios", {})
        for method, cases in data.get("vectors", {}).items():
            for case in cases:
                compute = _base_case(method, case, scenarios)
                yield f"{method}/{case['name']}", compute, case["expected"], BASE_RTOL
        for case in data.get("cases", []):
            yield case["id"], _aux_case(case), _decode(case["expected"]), AUX_RTOL
    except (KeyError, TypeError, AttributeError) as error:
        raise VectorFileError(
            f"A case does not follow the layout: {type(error).__name__}: {error}."
        ) from error


def _base_case(
    method: str, case: Mapping[str, Json], scenarios: Mapping[str, Json]
) -> Callable[[], Json]:
    def compute() -> Json:
        if method not in BASE_METHODS:
            raise UnknownMethod(method)
        scenario = None if case["scenario"] is None else scenarios[case["scenario"]]
        params = Params(case["params"])
        got = BASE_METHODS[method](params, scenario)
        params.finish()
        return got

    return compute


def _aux_case(case: Mapping[str, Json]) -> Callable[[], Json]:
    def compute() -> Json:
        key = (case["objective"], case["fn"])
        if key not in AUX_METHODS:
            raise UnknownMethod(f"{key[0]} ({key[1]})")
        params = Params(_decode(case["inputs"]))
        got = AUX_METHODS[key](params)
        params.finish()
        return got

    return compute


def _decode(value: Json) -> Json:
    """Read infinities and NaN that are written as strings."""
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
