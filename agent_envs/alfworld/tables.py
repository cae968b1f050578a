"""From the facts of a problem to the tables of a `Game`: names, numbers, masks."""

from __future__ import annotations

from agent_envs.alfworld.generations import Generation
from agent_envs.alfworld.goals import GoalTerms
from agent_envs.alfworld.model import Game, Goal, State, TaskType, bits
from agent_envs.alfworld.naming import number_names
from agent_envs.alfworld.words import class_of, make_words
from agent_envs.errors import CorruptGame, UnsupportedGame

_DECLARED_UNUSED = frozenset(
    (
        "isreceptacleobjectfull",
        "wasinreceptacle",
        "checked",
        "examined",
        "holdsanyreceptacleobject",
        "full",
        "moveable",
        "holdsany",
    )
)
_FLAGS = (
    "openable",
    "opened",
    "isclean",
    "ishot",
    "iscool",
    "issliced",
    "istoggled",
    "ison",
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
    "isreceptacleobject",
)
_PAIRS = (
    "atlocation",
    "receptacleatlocation",
    "objectatlocation",
    "inreceptacle",
    "inreceptacleobject",
    "receptacletype",
    "cancontain",
    "objecttype",
    "holds",
)
_ABLE = {TaskType.CLEAN: "cleanable", TaskType.HEAT: "heatable", TaskType.COOL: "coolable"}


class Tables:
    """The facts of a problem, by predicate and by index."""

    def __init__(self, types: dict[str, str], facts: list[list[str]]) -> None:
        flags: dict[str, list[str]] = {name: [] for name in _FLAGS}
        pairs: dict[str, list[tuple[str, str]]] = {name: [] for name in _PAIRS}
        named: set[str] = set()
        for fact in facts:
            head = fact[0]
            if head in pairs and len(fact) == 3:
                pairs[head].append((fact[1], fact[2]))
            elif head in flags and len(fact) == 2:
                flags[head].append(fact[1])
            elif head not in _DECLARED_UNUSED:
                raise UnsupportedGame(f"PDDL: fact {' '.join(fact)!r} is not supported.")
            named.update(fact[1:])
        unknown = named - types.keys()
        if unknown:
            raise CorruptGame(f"PDDL: {min(unknown)!r} has facts but is not declared.")
        self.flags, self.pairs, self.types = flags, pairs, types
        # Only what occurs in a fact exists for the game: it is numbered, listed, acted upon.
        ids = sorted(named)
        self.names = number_names(ids)
        self.objs = self._of_type("object", ids)
        self.recs = self._of_type("receptacle", ids)
        self.locs = self._of_type("location", ids)
        self.obj = {name: index for index, name in enumerate(self.objs)}
        self.rec = {name: index for index, name in enumerate(self.recs)}
        self.loc = {name: index for index, name in enumerate(self.locs)}

    def _of_type(self, kind: str, ids: list[str]) -> tuple[str, ...]:
        types = self.types
        found = tuple(name for name in ids if types[name] == kind)
        for name in found:
            if name not in self.names:
                raise UnsupportedGame(
                    f"The {kind} {name!r} has no '_bar_' in its id, so the game could not "
                    "give it a name that a command can spell."
                )
        return found

    def game(
        self,
        *,
        revision: str,
        generation: Generation,
        sentence: str,
        terms: GoalTerms,
        walkthrough: tuple[str, ...] | None,
        solvable: bool,
    ) -> Game:
        """Put everything together."""
        obj_names = tuple(self.names[name] for name in self.objs)
        rec_names = tuple(self.names[name] for name in self.recs)
        rec_loc = self._receptacle_locations()
        recs_at = tuple(
            tuple(rec for rec, at in enumerate(rec_loc) if at == loc)
            for loc in range(len(self.locs))
        )
        objs_of_type: dict[str, int] = {}
        for name, kind in self.pairs["objecttype"]:
            objs_of_type[kind] = objs_of_type.get(kind, 0) | self._bit(self.obj, name)
        recs_of_type: dict[str, int] = {}
        for name, kind in self.pairs["receptacletype"]:
            recs_of_type[kind] = recs_of_type.get(kind, 0) | self._bit(self.rec, name)
        goal = self._goal(terms, objs_of_type, recs_of_type)
        return Game(
            revision=revision,
            generation=generation.name,
            task_type=terms.kind,
            task_sentence=sentence,
            recs=rec_names,
            rec_ids=self.recs,
            rec_class=tuple(map(class_of, rec_names)),
            rec_loc=rec_loc,
            locs=self.locs,
            recs_at=recs_at,
            objs=obj_names,
            obj_ids=self.objs,
            obj_class=tuple(map(class_of, obj_names)),
            openable=self._mask(self.rec, "openable"),
            pickupable=self._mask(self.obj, "pickupable"),
            cleanable=self._mask(self.obj, "cleanable"),
            heatable=self._mask(self.obj, "heatable"),
            coolable=self._mask(self.obj, "coolable"),
            toggleable=self._mask(self.obj, "toggleable"),
            sliceable=self._mask(self.obj, "sliceable"),
            receptacle_object=self._mask(self.obj, "isreceptacleobject"),
            knife=objs_of_type.get("knifetype", 0) | objs_of_type.get("butterknifetype", 0),
            can_hold=self._can_hold(objs_of_type, recs_of_type),
            sinks=recs_of_type.get("sinkbasintype", 0) | recs_of_type.get("sinktype", 0),
            microwaves=recs_of_type.get("microwavetype", 0),
            fridges=recs_of_type.get("fridgetype", 0),
            inner=self._inner(),
            start=self._start(),
            goal=goal,
            goal_recs=tuple(bits(goal.receptacles)),
            walkthrough=walkthrough,
            solvable=solvable,
            obj_index={name: index for index, name in enumerate(obj_names)},
            rec_index={name: index for index, name in enumerate(rec_names)},
            words=make_words(
                generation, obj_names, rec_names, self._spots(generation, rec_loc), rec_loc, recs_at
            ),
        )

    def _spots(self, generation: Generation, rec_loc: tuple[int, ...]) -> tuple[str, ...] | None:
        """What one arrives at, per receptacle; None where it is the receptacle itself."""
        if not generation.arrives_at_location:
            return None
        # A receptacle without a place cannot be gone to.
        return tuple(self.names[self.locs[loc]] if loc >= 0 else "" for loc in rec_loc)

    def _bit(self, index: dict[str, int], name: str) -> int:
        try:
            return 1 << index[name]
        except KeyError:
            raise CorruptGame(
                f"PDDL: {name!r} is a {self.types[name]}, which does not fit one of its facts."
            ) from None

    def _mask(self, index: dict[str, int], flag: str) -> int:
        mask = 0
        for name in self.flags[flag]:
            mask |= self._bit(index, name)
        return mask

    def _receptacle_locations(self) -> tuple[int, ...]:
        at = [-1] * len(self.recs)
        for rec, loc in self.pairs["receptacleatlocation"]:
            index = self._bit(self.rec, rec).bit_length() - 1
            place = self._bit(self.loc, loc).bit_length() - 1
            if at[index] not in (-1, place):
                raise UnsupportedGame(f"The receptacle {rec!r} is at two locations.")
            at[index] = place
        return tuple(at)

    def _can_hold(self, objs: dict[str, int], recs: dict[str, int]) -> tuple[int, ...]:
        of_type: dict[str, int] = {}
        for rec_type, obj_type in self.pairs["cancontain"]:
            of_type[rec_type] = of_type.get(rec_type, 0) | objs.get(obj_type, 0)
        held = [0] * len(self.recs)
        for rec_type, mask in recs.items():
            for rec in bits(mask):
                held[rec] |= of_type.get(rec_type, 0)
        return tuple(held)

    def _inner(self) -> tuple[tuple[int, ...], ...]:
        masks = [0] * len(self.objs)
        for inside, outside in self.pairs["inreceptacleobject"]:
            masks[self._bit(self.obj, outside).bit_length() - 1] |= self._bit(self.obj, inside)
        return tuple(tuple(bits(mask)) for mask in masks)

    def _start(self) -> State:
        agents = self.pairs["atlocation"]
        if len(agents) != 1 or self.types[agents[0][0]] != "agent":
            raise UnsupportedGame(f"Expected one agent at one location, found {agents!r}.")
        holds = self.pairs["holds"]
        if len(holds) > 1:
            raise UnsupportedGame(f"The agent holds more than one object: {holds!r}.")
        contents = [0] * len(self.recs)
        for obj, rec in self.pairs["inreceptacle"]:
            contents[self._bit(self.rec, rec).bit_length() - 1] |= self._bit(self.obj, obj)
        at = [0] * len(self.locs)
        for obj, loc in self.pairs["objectatlocation"]:
            at[self._bit(self.loc, loc).bit_length() - 1] |= self._bit(self.obj, obj)
        return State(
            loc=self._bit(self.loc, agents[0][1]).bit_length() - 1,
            held=self._bit(self.obj, holds[0][1]).bit_length() - 1 if holds else -1,
            contents=tuple(contents),
            at=tuple(at),
            opened=self._mask(self.rec, "opened"),
            clean=self._mask(self.obj, "isclean"),
            hot=self._mask(self.obj, "ishot"),
            cool=self._mask(self.obj, "iscool"),
            sliced=self._mask(self.obj, "issliced"),
            toggled=self._mask(self.obj, "istoggled"),
            on=self._mask(self.obj, "ison"),
            removed=(0,) * len(self.recs),
        )

    def _goal(self, terms: GoalTerms, objs: dict[str, int], recs: dict[str, int]) -> Goal:
        wanted = objs.get(terms.object_type, 0)
        if terms.kind in _ABLE:
            wanted &= self._mask(self.obj, _ABLE[terms.kind])
        if terms.receptacle_type is not None:
            return Goal(terms.kind, wanted, recs.get(terms.receptacle_type, 0))
        lamps = objs.get("desklamptype", 0) & self._mask(self.obj, "toggleable")
        return Goal(terms.kind, wanted, (1 << len(self.recs)) - 1, lamps)
