"""The native engine beside the original one, step for step, and that a difference is found.

Promises:
1. In every corner of the rules both say the same; a walk that misses a corner fails the test.
2. What is no command is refused by both, in the same words, and the next command works.
3. Each kind of difference is found, with the step and both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType

import gymnasium
import pytest

from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, TaskType
from agent_envs.alfworld.original import lockstep as module
from agent_envs.alfworld.original.lockstep import LockstepResult, lockstep
from agent_envs.alfworld.original.lockstep_walks import HOSTILE, MixedWalk, situations
from agent_envs.alfworld.original.textworld_engine import Reply, TextWorldGame
from agent_envs.alfworld.original.verify import verify_transcripts
from agent_envs.alfworld.text import REFUSAL, intro
from tests.agent_envs.alfworld.household import payload, toy
from tests.agent_envs.alfworld.traps import GOALS, everything, trap_walk
from tests.support import full_count

BOTH = pytest.mark.parametrize("generation", GENERATIONS)


class StandIn:
    """The native engine in the original's place; `change` alters what it answers."""

    def __init__(self, game: Game, change: Callable[[int, Reply], Reply] | None = None) -> None:
        self._game, self._state, self._number = game, game.start, 0
        self._change = change or (lambda number, reply: reply)

    def reset(self) -> Reply:
        self._state, self._number = self._game.start, 0
        return self._reply(intro(self._game, self._state))

    def step(self, command: str) -> Reply:
        self._state, text, _ = step(self._game, self._state, command)
        self._number += 1
        return self._reply(text)

    def _reply(self, text: str) -> Reply:
        game, state = self._game, self._state
        reply = Reply(text, admissible(game, state), won(game, state))
        return self._change(self._number, reply)

    def close(self) -> None:
        """Nothing to give back."""

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def walk_toy(generation: str, real: bool) -> LockstepResult:
    """The walk of oddities, beside the original or its stand-in."""
    content = payload(GOALS["put"], generation=generation)
    game = toy(GOALS["put"], generation)
    commands = trap_walk(generation)
    steps = len(commands) + full_count(0, 150)
    choose = MixedWalk(game, 0, first=commands)
    with TextWorldGame(content) if real else StandIn(game) as original:
        return lockstep("toy", game, original, choose, steps)


@BOTH
def test_the_walk_of_oddities_meets_every_situation(generation: str) -> None:
    met = walk_toy(generation, real=False).situations
    assert everything(generation) <= set(met)
    # every name that a step can have is asked for, none is asked for in vain
    assert set(met) - everything(generation) == set()


@pytest.mark.reference
@BOTH
def test_lock_step_through_every_oddity(reference: None, generation: str) -> None:
    result = walk_toy(generation, real=True)
    assert result.differences == ()
    assert result.steps >= len(trap_walk(generation))
    assert everything(generation) <= set(result.situations)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("goal", "generation"), [("heat", "put"), ("two", "move"), ("look", "put")]
)
def test_lock_step_with_other_goals(reference: None, goal: str, generation: str) -> None:
    game = toy(GOALS[goal], generation)
    with TextWorldGame(payload(GOALS[goal], generation=generation)) as original:
        result = lockstep("toy", game, original, MixedWalk(game, goal), full_count(15, 150))
    assert result.differences == ()


def some_of(games: GameSet, kind: TaskType, count: int) -> list[str]:
    """Games of a type; the sample takes small ones, which load in half the time."""
    ids = sorted(
        games.task_ids(task_types=[kind]),
        key=lambda task_id: (len(games.payload(task_id)["pddl_problem"]), task_id),
    )
    return Random(f"{kind}").sample(ids[: full_count(3, len(ids))], count)


@pytest.mark.reference
@pytest.mark.data
@pytest.mark.parametrize("kind", list(TaskType))
def test_lock_step_on_real_games(reference: None, real_games: GameSet, kind: TaskType) -> None:
    met: Counter[str] = Counter()
    for task_id in some_of(real_games, kind, full_count(1, 10)):
        game = real_games.load(task_id)
        choose = MixedWalk(game, task_id, first=game.walkthrough or ())
        with TextWorldGame(real_games.payload(task_id)) as original:
            result = lockstep(task_id, game, original, choose, full_count(14, 70))
        assert result.differences == ()
        met += result.situations
    assert {"go", "take", "won", "refused"} <= set(met)


@pytest.mark.data
def test_transcripts_of_the_original(real_data: Path, real_games: GameSet) -> None:
    result = verify_transcripts(real_data / "transcripts" / "alfworld.jsonl.gz", real_games)
    assert (result.episodes, result.steps, result.mismatches) == (72, 2880, 0)
    assert result.details == ()
    assert result.ok


@pytest.mark.data
def test_transcripts_of_older_games(real_data: Path) -> None:
    result = verify_transcripts(
        real_data / "transcripts" / "alfworld_old.jsonl.gz",
        real_data / "alfworld_games_old.tar.xz",
    )
    assert (result.episodes, result.steps, result.mismatches) == (18, 450, 0)
    assert result.details == ()
    assert result.ok


@pytest.mark.parametrize("name", HOSTILE)
@BOTH
def test_o7_what_is_no_command_is_refused_and_the_next_one_works(
    generation: str, name: str
) -> None:
    game = toy(generation=generation)
    state, text, accepted = step(game, game.start, HOSTILE[name])
    assert (text, accepted) == (REFUSAL, False)
    assert state is game.start
    state, text, accepted = step(game, state, "go to desk 1")
    assert accepted
    assert text.startswith("You arrive at ")


@BOTH
def test_o7_the_env_survives_a_run_of_hostile_texts(generation: str) -> None:
    """Each spends a step, changes nothing and says so; then the game goes on."""
    task = "train/pick_two_obj_and_place-Mug-None-Desk-1/t"
    games = GameSet.from_games([(task, "train", payload(GOALS["two"], generation=generation))])
    env = gymnasium.make("SeroALFWorld-v0", data=games)
    _, info = env.reset(options={"task_id": task})
    start, commands = env.unwrapped.privileged().state, info["admissible_actions"]
    for number, text in enumerate((*HOSTILE.values(), "go to desk 1 then take pen 1 from desk 1")):
        answer, reward, over, cut, info = env.step(text)
        assert (answer, reward, over, cut) == (REFUSAL, 0.0, False, False)
        assert info["command_valid"] is False
        assert info["steps_left"] == 49 - number
        assert info["admissible_actions"] == commands
        assert env.unwrapped.privileged().state == start
    answer, _, _, _, info = env.step("go to desk 1")
    assert info["command_valid"]
    assert answer.endswith("On the desk 1, you see a desklamp 1, and a pen 1.")


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("observation", lambda reply: reply._replace(observation=reply.observation + " ")),
        ("admissible", lambda reply: reply._replace(admissible=reply.admissible[::-1])),
        ("admissible", lambda reply: reply._replace(admissible=reply.admissible[1:])),
        ("won", lambda reply: reply._replace(won=not reply.won)),
    ],
)
@pytest.mark.parametrize("at", [0, 3])
def test_an_altered_answer_is_found(what: str, change: Callable[[Reply], Reply], at: int) -> None:
    game = toy()
    altered = StandIn(game, lambda number, reply: change(reply) if number == at else reply)
    result = lockstep("toy", game, altered, MixedWalk(game, 1), 10)
    assert [(d.task_id, d.step, d.what) for d in result.differences] == [("toy", at, what)]
    assert result.steps == at  # it stops there
    assert result.differences[0].expected != result.differences[0].found


def test_a_command_that_only_one_engine_takes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original does not say whether it took a command; its list before says it."""

    def lax(game: Game, state: object, command: str) -> tuple[object, str, bool]:
        after, text, accepted = step(game, state, command)  # type: ignore[arg-type]
        return after, text, accepted or command == "dance"

    monkeypatch.setattr(module, "step", lax)
    game = toy()
    choose = MixedWalk(game, 0, first=("look", "dance"))
    result = lockstep("toy", game, StandIn(game), choose, 5)
    assert [(d.step, d.what, d.action) for d in result.differences] == [(2, "accepted", "dance")]
    assert (result.differences[0].expected, result.differences[0].found) == (False, True)


def test_walks_follow_their_seed_and_try_all_kinds() -> None:
    game = toy(GOALS["two"])

    def walk(seed: int) -> tuple[list[str], Counter[str]]:
        state, commands, met = game.start, [], Counter[str]()
        choose = MixedWalk(game, seed, planner=lambda _, state: ("go to shelf 1",))
        for _ in range(400):
            command = choose(state)
            before, (state, _, accepted) = state, step(game, state, command)
            met.update(situations(game, before, command, state, accepted))
            commands.append(command)
        return commands, met

    first, met = walk(3)
    assert first == walk(3)[0]
    other, met_by_other = walk(4)
    assert first != other
    assert 0.1 < met["refused"] / 400 < 0.6
    assert first.count("go to shelf 1") > 50  # what the planner says
    assert {"hostile: emoji", "hostile: NUL byte"} <= set(met)
    assert {"go", "open", "take", "move", "use"} <= set(met + met_by_other)
