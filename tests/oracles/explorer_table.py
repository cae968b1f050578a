"""A world told by hand, for the explorer."""

from __future__ import annotations

from oracles import History, HistoryItem, PlanStatus
from oracles.alfworld_explorer import ALFWorldExplorer, Exploration
from tests.oracles.explored import INTRO, Blind

NO = "Nothing happens."
ROOM = "a desk 1, a shelf 1, a sinkbasin 1, a fridge 1, a microwave 1, and a drawer 1"


class Table:
    """An explorer, and somebody who types in what it reads."""

    def __init__(self, task: str, recs: str = ROOM, *, seed: int = 0, risk: float = 0.02) -> None:
        self.oracle = ALFWorldExplorer(seed=seed, risk=risk)
        self.text = INTRO.format(recs=recs, task=task)
        self.state: Exploration | None = None
        self.history: History = ()

    def did(self, command: str, text: str) -> Table:
        """The student's own step, before the explorer takes over."""
        assert self.state is None
        self.history += (HistoryItem(self.text, command, text != NO),)
        self.text = text
        return self

    def ask(self) -> str | None:
        """The next command, or the status and its reason."""
        if self.state is None:
            self.state = self.oracle.start(Blind(), self.history)
        decision, self.state = self.oracle.act(self.state, Blind(), self.text)
        if decision.status is PlanStatus.FOUND:
            return decision.action
        assert decision.action is None
        return f"{decision.status.value}: {decision.detail}"

    def goes(self, *script: str) -> None:
        """The commands and what each is answered, in turn: command, answer, command, ..."""
        for number, line in enumerate(script):
            if number % 2:
                self.text = line
            else:
                assert self.ask() == line


def went(rec: str, objs: str = "nothing") -> str:
    return f"You arrive at {rec}. On the {rec}, you see {objs}."


def shut(rec: str) -> str:
    return f"You arrive at {rec}. The {rec} is closed."


def opened(rec: str, objs: str = "nothing") -> str:
    return f"You open the {rec}. The {rec} is open. In it, you see {objs}."


def took(obj: str, rec: str) -> str:
    return f"You pick up the {obj} from the {rec}."


def moved(obj: str, rec: str) -> str:
    return f"You move the {obj} to the {rec}."
