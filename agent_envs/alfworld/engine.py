"""The rules of ALFWorld as pure functions over `Game` and `State`.

Exactness is the point: every text, list and effect is the one of the original engine, its
oddities included (docs/alfworld.md lists them). Nothing here reads or writes anything but its
arguments and a bounded memo of command lists.
"""

from __future__ import annotations

from agent_envs.alfworld import operations as op
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.text import (
    HELP,
    REFUSAL,
    inventory_text,
    look_text,
    object_text,
    receptacle_text,
)

MEMO_LIMIT = 512
"""Command lists remembered per game; the memo starts anew when it is full."""


def step(game: Game, state: State, command: str) -> tuple[State, str, bool]:
    """Carry out one command.

    Blanks around the command do not matter, everything else has to be exact. Whatever is not a
    command that applies here is refused: the same state, "Nothing happens.", False.

    Returns:
        The next state, what the game answers, whether the command was accepted.
    """
    action = game.words.commands.get(command)
    if action is None:
        command = command.strip()
        action = game.words.commands.get(command)
        if action is None:
            return _step_two_names(game, state, command)
    kind, index = action
    if kind == op.GO:
        loc = game.rec_loc[index]
        if loc == state.loc or loc < 0:
            return state, REFUSAL, False
        text = game.words.arrive[index] + receptacle_text(game, state, index)
        return _with_loc(state, loc), text, True
    if kind >= op.EXAMINE_OBJ:
        if kind == op.USE:
            return _use(game, state, index)
        if state.held != index:
            return state, REFUSAL, False
        return state, object_text(game, state, index), True
    if kind == op.LOOK:
        return state, look_text(game, state), True
    if kind == op.INVENTORY:
        return state, inventory_text(game, state), True
    if kind == op.HELP:
        return state, HELP, True
    # left are the commands that want the receptacle to be here
    if game.rec_loc[index] != state.loc:
        return state, REFUSAL, False
    if kind == op.EXAMINE_REC:
        return state, receptacle_text(game, state, index), True
    bit = 1 << index
    if not game.openable & bit or (state.opened & bit != 0) != (kind == op.CLOSE):
        return state, REFUSAL, False
    state = _with_opened(state, state.opened ^ bit)
    if kind == op.CLOSE:
        return state, f"You close the {game.recs[index]}.", True
    text = f"You open the {game.recs[index]}. {receptacle_text(game, state, index)}"
    return state, text, True


def _step_two_names(game: Game, state: State, command: str) -> tuple[State, str, bool]:
    """Commands like ``take mug 1 from desk 2``: verb, name, preposition, name."""
    parts = command.split(" ")
    if len(parts) != 6:
        return state, REFUSAL, False
    verb, kind1, number1, preposition, kind2, number2 = parts
    form = game.words.two_names.get(verb)
    obj = game.obj_index.get(f"{kind1} {number1}")
    if form is None or obj is None or preposition != form[1]:
        return state, REFUSAL, False
    second = f"{kind2} {number2}"
    action = form[0]
    if action == op.SLICE:
        return _slice(game, state, obj, game.obj_index.get(second))
    rec = game.rec_index.get(second)
    if rec is None or game.rec_loc[rec] != state.loc:
        return state, REFUSAL, False
    if action == op.TAKE:
        return _take(game, state, obj, rec)
    if state.held != obj:
        return state, REFUSAL, False
    if action == op.PUT:
        return _put_down(game, state, obj, rec)
    return _treat(game, state, obj, rec, action)


def _take(game: Game, state: State, obj: int, rec: int) -> tuple[State, str, bool]:
    bit, where = 1 << obj, 1 << rec
    if (
        state.held >= 0
        or not game.pickupable & bit
        or not state.contents[rec] & bit
        or game.openable & ~state.opened & where
    ):
        return state, REFUSAL, False
    loc, _, contents, at, opened, clean, hot, cool, sliced, toggled, on, removed = state
    # Only this receptacle loses the object: one that starts in several stays in the others.
    state = State(
        loc,
        obj,
        _put(contents, rec, contents[rec] & ~bit),
        _put(at, loc, at[loc] & ~bit),
        opened,
        clean,
        hot,
        cool,
        sliced,
        toggled,
        on,
        _put(removed, rec, removed[rec] | bit),
    )
    return state, f"You pick up the {game.objs[obj]} from the {game.recs[rec]}.", True


def _put_down(game: Game, state: State, obj: int, rec: int) -> tuple[State, str, bool]:
    bit, where = 1 << obj, 1 << rec
    if game.openable & ~state.opened & where or not game.can_hold[rec] & bit:
        return state, REFUSAL, False
    loc, _, contents, at, opened, clean, hot, cool, sliced, toggled, on, removed = state
    state = State(
        loc,
        -1,
        _put(contents, rec, contents[rec] | bit),
        _put(at, loc, at[loc] | bit),
        opened,
        clean,
        hot,
        cool,
        sliced,
        toggled,
        on,
        _put(removed, rec, removed[rec] & ~bit) if removed[rec] & bit else removed,
    )
    said, joint = game.words.put_reply
    return state, f"{said}{game.objs[obj]}{joint}{game.recs[rec]}.", True


def _treat(game: Game, state: State, obj: int, rec: int, action: int) -> tuple[State, str, bool]:
    """Clean, heat or cool the object held. May be repeated; doors do not matter."""
    bit = 1 << obj
    if action == op.CLEAN:
        able, where, verb = game.cleanable, game.sinks, "clean"
    elif action == op.HEAT:
        able, where, verb = game.heatable, game.microwaves, "heat"
    else:
        able, where, verb = game.coolable, game.fridges, "cool"
    if not able & bit or not where >> rec & 1:
        return state, REFUSAL, False
    if action == op.CLEAN:
        state = state._replace(clean=state.clean | bit)
    elif action == op.HEAT:
        state = state._replace(hot=state.hot | bit, cool=state.cool & ~bit)
    else:
        state = state._replace(hot=state.hot & ~bit, cool=state.cool | bit)
    return state, f"You {verb} the {game.objs[obj]} using the {game.recs[rec]}.", True


def _use(game: Game, state: State, obj: int) -> tuple[State, str, bool]:
    """Toggle an object that is in a receptacle here, even in a closed one.

    The game always says "turn on": it looks at whether the object was ever toggled, after the
    toggling.
    """
    bit = 1 << obj
    if not game.toggleable & bit:
        return state, REFUSAL, False
    contents = state.contents
    if not any(contents[rec] & bit for rec in game.recs_at[state.loc]):
        return state, REFUSAL, False
    state = state._replace(toggled=state.toggled | bit, on=state.on ^ bit)
    return state, f"You turn on the {game.objs[obj]}.", True


def _slice(game: Game, state: State, obj: int, knife: int | None) -> tuple[State, str, bool]:
    """Slice what is recorded as being at this location, through closed doors as well."""
    bit = 1 << obj
    if (
        knife is None
        or state.held != knife
        or not game.knife >> knife & 1
        or not game.sliceable & state.at[state.loc] & bit
    ):
        return state, REFUSAL, False
    state = state._replace(sliced=state.sliced | bit)
    return state, f"You sliced the {game.objs[obj]} with the {game.objs[knife]}.", True


def admissible(game: Game, state: State) -> tuple[str, ...]:
    """Every command that `step` would accept, sorted, each once."""
    loc, held, contents, at, opened = state[:5]
    here = game.recs_at[loc]
    words = game.words
    key = (
        loc,
        held,
        opened & words.local_mask[loc],
        at[loc] if held >= 0 and game.knife >> held & 1 else 0,
        *[contents[rec] for rec in here],
    )
    commands = words.memo.get(key)
    if commands is None:
        commands = _admissible(game, state)
        if len(words.memo) >= MEMO_LIMIT:
            words.memo.clear()
        words.memo[key] = commands
    return commands


def _admissible(game: Game, state: State) -> tuple[str, ...]:
    held, contents, opened = state.held, state.contents, state.opened
    here = game.recs_at[state.loc]
    go_to = game.words.go_to[state.loc]
    recs, objs = game.recs, game.objs
    put, joint = game.words.put
    before: list[str] = []  # clean, close, cool, examine: what sorts before "go to"
    after = [*game.words.anywhere]
    usable = 0
    for rec in here:
        name = recs[rec]
        inside = contents[rec]
        usable |= inside
        before.append("examine " + name)
        if game.openable >> rec & 1:
            if not opened >> rec & 1:
                after.append("open " + name)
                continue
            before.append("close " + name)
        if held >= 0:
            if game.can_hold[rec] >> held & 1:
                after.append(put + objs[held] + joint + name)
            continue
        inside &= game.pickupable
        tail = " from " + name
        while inside:
            low = inside & -inside
            after.append("take " + objs[low.bit_length() - 1] + tail)
            inside ^= low
    usable &= game.toggleable
    while usable:
        low = usable & -usable
        after.append("use " + objs[low.bit_length() - 1])
        usable ^= low
    if held >= 0:
        _add_held_anywhere(game, state, before, after)
        _add_treatments(game, here, held, before, after)
    before.sort()
    after.sort()
    return (*before, *go_to, *after)


def _add_held_anywhere(game: Game, state: State, before: list[str], after: list[str]) -> None:
    held = state.held
    name = game.objs[held]
    before.append("examine " + name)
    if game.knife >> held & 1:
        at_hand = game.sliceable & state.at[state.loc]
        while at_hand:
            low = at_hand & -at_hand
            after.append(f"slice {game.objs[low.bit_length() - 1]} with {name}")
            at_hand ^= low


def _add_treatments(
    game: Game, here: tuple[int, ...], held: int, before: list[str], after: list[str]
) -> None:
    name = game.objs[held]
    for rec in here:
        if game.sinks >> rec & 1 and game.cleanable >> held & 1:
            before.append(f"clean {name} with {game.recs[rec]}")
        if game.fridges >> rec & 1 and game.coolable >> held & 1:
            before.append(f"cool {name} with {game.recs[rec]}")
        if game.microwaves >> rec & 1 and game.heatable >> held & 1:
            after.append(f"heat {name} with {game.recs[rec]}")


def _put(row: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    changed = list(row)
    changed[index] = value
    return tuple(changed)


def _with_loc(state: State, loc: int) -> State:
    _, held, contents, at, opened, clean, hot, cool, sliced, toggled, on, removed = state
    return State(loc, held, contents, at, opened, clean, hot, cool, sliced, toggled, on, removed)


def _with_opened(state: State, opened: int) -> State:
    loc, held, contents, at, _, clean, hot, cool, sliced, toggled, on, removed = state
    return State(loc, held, contents, at, opened, clean, hot, cool, sliced, toggled, on, removed)
