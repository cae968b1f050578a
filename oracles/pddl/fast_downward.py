"""Fast Downward as a program of its own: it reads two files and writes a plan.

It is GPL-3 software, brought by the extra ``pddl`` (the package ``up-fast-downward``) or built by
yourself; none of it is imported or copied. Its translator and its search each run as a process in
a process group of its own, with limits on time and memory, in a folder that is removed whatever
happens.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from agent_envs.errors import InvalidOption, MissingExtra, SeroError
from oracles.base import PlanStatus
from oracles.pddl.simulator import broken_at
from oracles.pddl.task import PROBLEM_FILE, Task, read_task
from oracles.pddl.writer import SafeTask, safe_texts

FOLDER = "SERO_FAST_DOWNWARD"
"""Names a folder of Fast Downward, built there; else the package of the extra is used."""

OPTIMAL = "astar(lmcut())"
# The heuristic's own way with negated derived facts can take for ever where there are quantifiers.
QUICK = "let(h, ff(axioms=approximate_negative), lazy_wastar([h], preferred=[h], w=3))"
SEARCHES = {"optimal": OPTIMAL, "quick": QUICK}
"""By name: with the fewest commands, and a plan soon."""

_BLIND = "astar(blind())"
_BUILD = Path("builds", "release", "bin")
# Exit codes that Fast Downward documents (https://www.fast-downward.org/latest/documentation/exit-codes).
_FOUND = (0, 1, 2, 3)
_IMPOSSIBLE = (10, 11)
_GAVE_UP = (12, 13)  # 13: proven, but only within a bound
_NO_MEMORY = (20, 22, 24, -signal.SIGKILL)  # the last: by the system, when it has none left
_NO_TIME = (21, 23, -signal.SIGXCPU)
_BAD_SEARCH, _CANNOT_SEARCH = 33, 34
_EXPLORED = "Completely explored state space"
_MEMORY_WORDS = re.compile(
    "MemoryError|bad_alloc|cannot allocate memory|failed to map segment", re.IGNORECASE
)

# Limits are set in the child itself, in an interpreter without site packages: `preexec_fn` is not
# safe in a process that has threads. PR_SET_PDEATHSIG is 1, SIGKILL is 9.
_LIMIT = """
import ctypes, os, resource, sys
parent, memory, seconds = map(int, sys.argv[1:4])
if sys.platform == "linux": ctypes.CDLL(None).prctl(1, 9)  # killed when its parent dies
if os.getppid() != parent: sys.exit(1)  # it did so already
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if memory: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
if seconds: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
"""
_TRANSLATE = (
    _LIMIT
    + """
import runpy
package = sys.argv[5]
sys.path.insert(0, sys.argv[4])
sys.argv = [package, *sys.argv[6:]]
runpy.run_module(package, run_name="__main__", alter_sys=True)
"""
)
_SEARCH = (
    _LIMIT
    + """
os.dup2(os.open(sys.argv[4], os.O_RDONLY), 0)
os.execv(sys.argv[5], sys.argv[5:])
"""
)


class FastDownwardFailed(SeroError, RuntimeError):
    """Fast Downward ended in a way that says nothing of the task; its last words are told."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What came of a search; `operators` is empty unless the status is FOUND."""

    status: PlanStatus
    operators: tuple[tuple[str, ...], ...] = ()
    """Per step the action and its arguments, spelled as they were declared."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the parts of Fast Downward are."""

    folder: Path
    translator: str
    search: Path


def solve(
    domain_text: str,
    problem_text: str,
    *,
    search: str = "quick",
    budget_s: float | None = None,
    memory_mb: int | None = 2048,
    domain_file: str = "domain.pddl",
    problem_file: str = PROBLEM_FILE,
) -> Solution:
    """A plan for a problem, in PDDL. Every action costs 1, whatever the domain says.

    Args:
        domain_text: the rules.
        problem_text: objects, first state and goal.
        search: one of `SEARCHES`, or a search of Fast Downward, such as ``eager_greedy([ff()])``.
        budget_s: seconds of wall-clock time for everything, translation included; then TIMEOUT.
            None: no limit.
        memory_mb: megabytes that a process may take; then TIMEOUT with the reason in `detail`.
        domain_file: what errors call `domain_text`.
        problem_file: what errors call `problem_text`.

    Raises:
        MissingExtra: Fast Downward is not installed.
        InvalidOption: no such search, or a limit below 0.
        MalformedPDDL: a text is no PDDL; names file and line.
        NameCollision: two names differ in case alone.
        UnsupportedPDDL: a construct that is not planned for; names it, file and line.
        FastDownwardFailed: it broke down, or its plan is wrong.
    """
    task = read_task(domain_text, problem_text, domain_file, problem_file)
    solution = solve_task(task, search=search, budget_s=budget_s, memory_mb=memory_mb)
    spelled = task.spelled
    operators = tuple(tuple(spelled[word] for word in step) for step in solution.operators)
    return Solution(solution.status, operators, solution.detail)


def solve_task(
    task: Task,
    *,
    search: str = "quick",
    budget_s: float | None = None,
    memory_mb: int | None = 2048,
) -> Solution:
    """As `solve`, with names in lower case. Raises the same, but nothing about texts."""
    if memory_mb is not None and memory_mb < 1:
        raise InvalidOption(f"memory_mb must be at least 1, or None; found {memory_mb!r}.")
    if budget_s is not None and (math.isnan(budget_s) or budget_s <= 0):
        return Solution(PlanStatus.TIMEOUT, (), f"no time: the budget is {budget_s} s")
    deadline = None if budget_s is None else monotonic() + budget_s
    programs = find_programs()
    texts = safe_texts(task)
    with tempfile.TemporaryDirectory(prefix="sero-pddl-") as folder:
        run = _Run(programs, Path(folder), deadline, memory_mb, texts)
        try:
            solution = run.solution(SEARCHES.get(search, search))
        except _OutOfTime:
            return Solution(PlanStatus.TIMEOUT, (), f"no result within the budget of {budget_s} s")
        except _OutOfMemory:
            return Solution(PlanStatus.TIMEOUT, (), f"out of memory: {memory_mb} MB were allowed")
    if solution.status is PlanStatus.FOUND:
        step = broken_at(task, solution.operators)
        if step is not None:
            raise FastDownwardFailed(
                f"The plan of Fast Downward breaks a rule of the game at step {step}: "
                f"{solution.operators[step : step + 1] or 'the goal is not reached'}."
            )
    return solution


def find_programs() -> Programs:
    """Where Fast Downward is: ``$SERO_FAST_DOWNWARD``, else the installed package.

    Raises:
        MissingExtra: nowhere, or incomplete.
    """
    named = os.environ.get(FOLDER)
    if named:
        folder = Path(named)
    else:
        found = importlib.util.find_spec("up_fast_downward")  # looks, without importing it
        if found is None or found.origin is None:
            raise MissingExtra(
                "The PDDL oracle needs Fast Downward: pip install '.[pddl]' in a checkout of sero, "
                f"or set {FOLDER} to a folder of Fast Downward that was built."
            )
        folder = Path(found.origin).parent / "downward"
    build = folder / _BUILD
    for translator in ("translate", "fast_downward.translate"):
        if (build / Path(*translator.split(".")) / "__main__.py").is_file():
            break
    else:
        raise MissingExtra(f"There is no translator of Fast Downward in {build}. Build it anew.")
    if not os.access(build / "downward", os.X_OK):
        raise MissingExtra(f"There is no program {build / 'downward'}. Build Fast Downward anew.")
    return Programs(build, translator, build / "downward")


class _OutOfTime(Exception):
    pass


class _OutOfMemory(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Run:
    programs: Programs
    folder: Path
    deadline: float | None
    memory_mb: int | None
    texts: SafeTask

    def solution(self, search: str) -> Solution:
        self._translate()
        code, log = self._search(search)
        if code == _CANNOT_SEARCH and search == OPTIMAL:
            # derived facts or conditional effects, which this heuristic cannot read
            code, log = self._search(_BLIND)
        elif code in _GAVE_UP and not (self._exact(search) and _EXPLORED in log):
            code, log = self._search(_BLIND)
        if code in _FOUND:
            lines = (self.folder / "plan").read_text("utf-8").splitlines()
            return Solution(PlanStatus.FOUND, self.texts.operators(lines))
        if code in _IMPOSSIBLE or (code in _GAVE_UP and _EXPLORED in log):
            return Solution(PlanStatus.UNSOLVABLE, (), "proven by a search of all states")
        if code in (_BAD_SEARCH, _CANNOT_SEARCH):
            raise InvalidOption(f"Fast Downward cannot search by {search!r}: {_end(log)}")
        raise FastDownwardFailed(f"The search of Fast Downward ended with {code}: {_end(log)}")

    def _exact(self, search: str) -> bool:
        """Whether a search that ends without a plan is a proof."""
        if search not in (OPTIMAL, QUICK):
            return search == _BLIND
        # With derived facts these heuristics take states for dead ends that are none.
        sas = (self.folder / "output.sas").read_text("utf-8")
        return sas.rstrip().endswith("\n0")  # the last section is that of the axioms

    def _translate(self) -> None:
        for name, text in (
            ("domain.pddl", self.texts.domain),
            ("problem.pddl", self.texts.problem),
        ):
            (self.folder / name).write_text(text, "utf-8")
        where = [str(self.programs.folder), self.programs.translator]
        code, log = self._process(_TRANSLATE, [*where, "domain.pddl", "problem.pddl"])
        if code not in (0, *_IMPOSSIBLE):
            words = self.texts.explained(_end(log))
            raise FastDownwardFailed(f"The translator of Fast Downward ended with {code}: {words}")

    def _search(self, search: str) -> tuple[int, str]:
        arguments = ["--search", search, "--internal-plan-file", "plan"]
        return self._process(_SEARCH, ["output.sas", str(self.programs.search), *arguments])

    def _process(self, program: str, arguments: Sequence[str]) -> tuple[int, str]:
        """Exit code and output of a child that ends in time.

        Raises:
            _OutOfTime, _OutOfMemory: it did not.
        """
        left = None if self.deadline is None else self.deadline - monotonic()
        if left is not None and left <= 0:
            raise _OutOfTime
        memory = 0 if self.memory_mb is None else self.memory_mb << 20
        # Processor time as well: should this process be killed, its child ends all the same.
        seconds = 0 if left is None else math.ceil(min(left, 1e6)) + 1
        limits = [str(number) for number in (os.getpid(), memory, seconds)]
        command = [sys.executable, "-S", "-P", "-c", program, *limits, *arguments]
        with (self.folder / "log").open("w+b") as log:
            child = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONHASHSEED": "0", "PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
            try:
                code = child.wait(left)
            except subprocess.TimeoutExpired:
                raise _OutOfTime from None
            finally:
                _end_group(child)
            log.seek(0)
            text = log.read().decode("utf-8", "replace")
        if code in _NO_MEMORY or (code != 0 and _MEMORY_WORDS.search(text)):
            raise _OutOfMemory
        if code in _NO_TIME:
            raise _OutOfTime
        return code, text


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """No process of the child's group is left, whatever interrupts the wait for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _end(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return " ".join(lines[-4:]) or "(it wrote nothing)"
