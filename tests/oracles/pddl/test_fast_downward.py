"""Fast Downward as a program: plans, limits, names. Nothing is left behind, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_envs.errors import InvalidOption, MissingExtra
from oracles import PlanStatus
from oracles.pddl.fast_downward import find_programs, solve
from oracles.pddl.reader import MalformedPDDL, NameCollision, UnsupportedPDDL
from oracles.pddl.simulator import broken_at
from oracles.pddl.task import read_task
from tests.oracles.pddl.toys import LINE, crowd, line, oversized, processes_in
from tests.support import ROOT

AMPLE = 300.0
"""Seconds: more than anything here can take on a slow machine."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; after the test nothing may be in it, and nobody at work."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("search", ["quick", "optimal", "eager_greedy([ff()])"])
def test_plans_are_right(fast_downward: None, temporary: Path, search: str) -> None:
    problem = line(("box",), ("a", "b", "c"), "(at box c)")
    solution = solve(LINE, problem, search=search, budget_s=AMPLE)
    assert solution.status is PlanStatus.FOUND
    assert solution.operators == (("Move", "box", "a", "b"), ("Move", "box", "b", "c"))


def test_a_goal_that_holds_needs_no_steps(fast_downward: None) -> None:
    solution = solve(LINE, line(("box",), ("a", "b"), "(at box a)"), budget_s=AMPLE)
    assert (solution.status, solution.operators) == (PlanStatus.FOUND, ())


@pytest.mark.parametrize("search", ["quick", "optimal", "eager_greedy([ff()], bound=1)"])
def test_o16_what_cannot_be_solved_is_unsolvable(
    fast_downward: None, temporary: Path, search: str
) -> None:
    broken = line(("box",), ("a", "b", "c"), "(at box c)", broken=True)
    solution = solve(LINE, broken, search=search, budget_s=AMPLE)
    assert (solution.status, solution.operators) == (PlanStatus.UNSOLVABLE, ())


def test_a_search_that_gives_up_is_no_proof(fast_downward: None) -> None:
    """Its bound rules out every plan: a complete search has to look again."""
    problem = line(("box",), ("a", "b", "c"), "(at box c)")
    solution = solve(LINE, problem, search="eager_greedy([ff()], bound=1)", budget_s=AMPLE)
    assert (solution.status, len(solution.operators)) == (PlanStatus.FOUND, 2)


def test_rules_with_quantifiers_are_planned_with(fast_downward: None) -> None:
    """`forall`, `imply`, `or` and effects with conditions: a box is shut when the last is in."""
    domain = """(define (domain boxes) (:requirements :adl) (:types item - object)
      (:constants Lid - item) (:predicates (in ?i - item) (shut) (heavy ?i - item) (tidy))
      (:action put :parameters (?i - item) :precondition (not (in ?i))
        :effect (and (in ?i) (forall (?j - item) (when (and (heavy ?i) (in ?j) (not (= ?i ?j)))
          (not (in ?j))))))
      (:action shut :parameters () :precondition (forall (?i - item) (imply (or (heavy ?i)
        (not (heavy ?i))) (in ?i))) :effect (when (in lid) (shut))))"""
    problem = """(define (problem p) (:domain boxes) (:objects iron book - item)
      (:init (heavy Iron)) (:goal (and (shut) (exists (?i - item) (in ?i)))))"""
    for search in ("quick", "optimal"):
        solution = solve(domain, problem, search=search, budget_s=AMPLE)
        assert solution.status is PlanStatus.FOUND
        assert solution.operators[0] == ("put", "iron")  # it throws out whatever is there
        assert solution.operators[-1] == ("shut",)
        assert len(solution.operators) == 4


def test_unsolvable_where_only_a_sequence_of_deletions_shows_it(fast_downward: None) -> None:
    """Without deletions both goals could be had: the proof takes a search."""
    both = line(("box",), ("a", "b"), "(and (at box a) (at box b))")
    for search in ("quick", "optimal"):
        assert solve(LINE, both, search=search, budget_s=AMPLE).status is PlanStatus.UNSOLVABLE


def test_o16_a_budget_covers_translation(fast_downward: None, temporary: Path) -> None:
    domain, problem = oversized()
    began = time.monotonic()
    solution = solve(domain, problem, budget_s=0.2)
    assert (solution.status, solution.operators) == (PlanStatus.TIMEOUT, ())
    assert "0.2 s" in solution.detail
    assert time.monotonic() - began < 60  # the whole of it would take days


def test_o16_a_budget_covers_the_search(fast_downward: None, temporary: Path) -> None:
    solution = solve(LINE, crowd(12, 12), search="astar(blind())", budget_s=1.5)
    assert (solution.status, solution.operators) == (PlanStatus.TIMEOUT, ())


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan")])
def test_o16_no_budget_starts_nothing(temporary: Path, budget: float) -> None:
    """Without Fast Downward as well."""
    problem = line(("box",), ("a", "b"), "(at box b)")
    assert solve(LINE, problem, budget_s=budget).status is PlanStatus.TIMEOUT


@pytest.mark.parametrize(
    ("memory_mb", "search"), [(1, "quick"), (20, "quick"), (40, "astar(blind())")]
)
def test_o16_too_little_memory_is_no_proof(
    fast_downward: None, temporary: Path, memory_mb: int, search: str
) -> None:
    domain, problem = oversized() if search == "quick" else (LINE, crowd(12, 12))
    solution = solve(domain, problem, search=search, budget_s=AMPLE, memory_mb=memory_mb)
    assert solution.status is PlanStatus.TIMEOUT
    assert solution.detail == f"out of memory: {memory_mb} MB were allowed"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_o16_the_end_of_the_player_leaves_no_process(
    fast_downward: None, tmp_path: Path, how: signal.Signals
) -> None:
    """After an interrupt no file as well; a process that is killed cannot remove its folder."""
    code = (
        # a process in the background may inherit that interrupts are ignored
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from oracles.pddl.fast_downward import solve\n"
        "from tests.oracles.pddl.toys import oversized\n"
        "solve(*oversized(), budget_s=None)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    player = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stderr=subprocess.PIPE
    )
    try:
        limit = time.monotonic() + AMPLE
        while not processes_in(tmp_path) and player.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.05)
        player.send_signal(how)
        _, errors = player.communicate(timeout=AMPLE)
    finally:
        player.kill()
    if how is signal.SIGINT:
        assert b"KeyboardInterrupt" in errors
        assert processes_in(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    while processes_in(tmp_path):
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_o17_names_come_back_as_they_were_declared(fast_downward: None) -> None:
    names = ("Mug_bar__minus_01_dot_70", "2cup", "UPPER", "a-b", "finish", "define", "o0")
    places = ("A1", "object_bar_1", "not")
    goal = "(and " + " ".join(f"(at {n.swapcase()} not)" for n in names) + ")"
    solution = solve(LINE, line(names, places, goal), budget_s=AMPLE)
    assert solution.status is PlanStatus.FOUND
    assert {step[0] for step in solution.operators} == {"Move"}
    assert {step[1] for step in solution.operators} == set(names)
    assert {word for step in solution.operators for word in step[2:]} == set(places)
    assert len(solution.operators) == 2 * len(names)


def test_o17_names_that_differ_in_case_alone_are_refused() -> None:
    with pytest.raises(NameCollision, match=r"problem\.pddl:1: .*'A1' and 'a1'"):
        solve(LINE, line(("A1", "a1"), ("p", "q"), "(at A1 q)"))


@pytest.mark.parametrize(
    ("old", "new", "construct", "number"),
    [
        (":negative-preconditions", ":durative-actions", ":durative-actions", 2),
        (":negative-preconditions", ":fluents", ":fluents", 2),
        ("(:action Move", "(:durative-action Move", ":durative-action", 5),
        ("(:action Move", "(:derived (at ?x ?p) (next ?p ?p)) (:action Move", ":derived", 5),
        (":precondition (and", ":precondition (and (>= (fuel) 1)", ">=", 7),
        (":effect (and", ":effect (and (decrease (fuel) 1)", "decrease", 8),
        (":effect (and", ":effect (and (increase (fuel) 1)", "increase", 8),
        ("?x - thing ?a", "?x - (either thing place) ?a", "either", 6),
    ],
)
def test_o17_unsupported_constructs_are_named(
    old: str, new: str, construct: str, number: int
) -> None:
    domain = LINE.replace(old, new, 1)
    assert domain != LINE
    with pytest.raises(UnsupportedPDDL, match=rf"mine\.pddl:{number}:") as caught:
        solve(domain, line(("x",), ("a", "b"), "(at x b)"), domain_file="mine.pddl")
    error = caught.value
    assert (error.construct, error.file, error.line) == (construct, "mine.pddl", number)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(next ?a ?b))", "(nxt ?a ?b))", r"domain\.pddl:7: .*predicate 'nxt'"),
        ("(next ?a ?b))", "(next ?a))", r"domain\.pddl:7: 'next' takes 2 arguments, found 1"),
        ("(next ?a ?b))", "(next ?a ?c))", r"domain\.pddl:7: .*variable '\?c'"),
        ("?x - thing ?a", "?x - thng ?a", r"domain\.pddl:6: .*type 'thng'"),
        ("(not (at ?x ?a)))))", "(not (at ?x ?a)))", "never closed"),
        ("(not (at ?x ?a)))))", "(not (at ?x ?a)))))))", "outside|more than one"),
    ],
)
def test_o17_faults_are_found_where_they_are(old: str, new: str, message: str) -> None:
    domain = LINE.replace(old, new, 1)
    assert domain != LINE
    with pytest.raises(MalformedPDDL, match=message):
        solve(domain, line(("x",), ("a", "b"), "(at x b)"))


GATE = LINE.replace("(next ?a ?b - place)", "(next ?a ?b - place) (locked ?p - place)").replace(
    "(next ?a ?b))", "(next ?a ?b) (not (locked ?b)))"
)
"""As `LINE`, but some places cannot be entered."""


@pytest.mark.parametrize("search", ["quick", "optimal"])
def test_o17_a_plan_that_overlooks_a_negation_is_not_given(
    fast_downward: None, search: str
) -> None:
    """The short way leads through a locked place, the long one around it."""
    ways = (("a", "b"), ("b", "e"), ("a", "c"), ("c", "d"), ("d", "e"))
    problem = (
        "(define (problem p) (:domain line) (:objects x - thing a b c d e - place) "
        f"(:init (at x a) (locked b) {' '.join(f'(next {p} {q})' for p, q in ways)}) "
        "(:goal (at x e)))"
    )
    task = read_task(GATE, problem)
    solution = solve(GATE, problem, search=search, budget_s=AMPLE)
    assert solution.operators == (
        ("Move", "x", "a", "c"), ("Move", "x", "c", "d"), ("Move", "x", "d", "e"),
    )  # fmt: skip
    lower = [tuple(word.lower() for word in step) for step in solution.operators]
    assert broken_at(task, lower) is None
    assert broken_at(task, [("move", "x", "a", "b"), ("move", "x", "b", "e")]) == 0


def test_searches_that_there_are_not_are_refused(fast_downward: None) -> None:
    problem = line(("x",), ("a", "b"), "(at x b)")
    with pytest.raises(InvalidOption, match="quickest"):
        solve(LINE, problem, search="quickest()", budget_s=AMPLE)
    with pytest.raises(InvalidOption, match="memory_mb"):
        solve(LINE, problem, memory_mb=0)


def test_a_folder_without_fast_downward_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_FAST_DOWNWARD", str(tmp_path))
    with pytest.raises(MissingExtra, match=tmp_path.name):
        find_programs()
    with pytest.raises(MissingExtra):
        solve(LINE, line(("x",), ("a", "b"), "(at x b)"))
