"""Sessions and goals that come from elsewhere, in a snapshot: checked, value by value."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from agent_envs.errors import SnapshotMismatch
from agent_envs.webshop import compat
from agent_envs.webshop.actions import ACTION_LIMIT, SUB_PAGES, click
from agent_envs.webshop.engine import DONE, INDEX, ITEM, RESULTS, START, SUB, Engine
from agent_envs.webshop.model import Goal, Session

NUMBER_LIMIT = 1 << 31
SESSIONS_KEPT = 1024
KEY_LIMIT = 1 << 63
INSTRUCTION_LIMIT = 1 << 14
"""Characters; there is room for as many on a page."""

GIVEN = "goal-"
"""What the task ids of goals begin with that a caller gave."""


def goal_id(goal: Goal) -> str:
    """The task id of a goal that a caller gave. Of its sentence alone, since ids are shown: what
    else is in a goal could be guessed from a digest of it."""
    digest = hashlib.sha256(goal.instruction.encode("utf-8", "surrogatepass"))
    return GIVEN + digest.hexdigest()[:16]


def checked_goal(value: Any) -> Goal:
    """`value` as a goal of plain values.

    Raises:
        ValueError: it is none; says why.
    """
    if not isinstance(value, tuple) or len(value) != len(Goal._fields):
        raise ValueError("it has not the fields of a goal")
    goal = Goal(*value)
    texts = (*goal[: Goal._fields.index("attributes")],)
    if not all(type(text) is str for text in texts):
        raise ValueError("one of its texts is no string")
    if not 0 < len(goal.instruction) <= INSTRUCTION_LIMIT:
        raise ValueError(
            f"its instruction has {len(goal.instruction):,} characters; it must have from 1 to "
            f"{INSTRUCTION_LIMIT:,}"
        )
    if not _are_strings(goal.attributes):
        raise ValueError("its attributes are no tuple of strings")
    options: Any = goal.options
    if not _are_strings(options) and not _are_pairs(options):
        raise ValueError("its options are neither strings nor (group, value) pairs")
    for name, number in (("price_upper", goal.price_upper), ("weight", goal.weight)):
        if number is None and name == "price_upper":
            continue
        if type(number) not in (int, float) or not math.isfinite(number or 0):
            raise ValueError(f"its {name} is no finite number")
    # One form for equal goals: they are compared, hashed and written as bytes.
    limit = None if goal.price_upper is None else float(goal.price_upper)
    if options and not isinstance(options[0], str):
        options = tuple((group, wanted) for group, wanted in options)
    return goal._replace(price_upper=limit, weight=float(goal.weight), options=options)


def _are_strings(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(part) is str for part in value)


def _are_pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(_are_strings(pair) and len(pair) == 2 for pair in value)


def restored_session(value: Any, engine: Engine) -> Session:
    """`checked_session`, which looks at an object once: branches go back to one state often.

    Raises:
        SnapshotMismatch: it is no session; says why.
    """
    session = engine.checked.get(id(value))
    if session is not value:
        session = checked_session(value, engine)
        if len(engine.checked) >= SESSIONS_KEPT:
            engine.checked.clear()
        engine.checked[id(session)] = session  # kept, so that nothing else gets its identity
    return session


def checked_session(value: Any, engine: Engine) -> Session:
    """`value` as a session that can be played in this shop.

    Raises:
        SnapshotMismatch: it is none; says why.
    """
    if not isinstance(value, tuple) or len(value) != len(Session._fields):
        raise _refused("it has not the fields of a session", value)
    session = value if type(value) is Session else Session(*value)
    page, query, number, _, sub, _, visited, draw = session
    if type(page) is not int or not INDEX <= page <= DONE:
        raise _refused("there is no such page", page)
    if page == INDEX:
        if session != START or any(type(a) is not type(b) for a, b in zip(session, START)):  # noqa: B905
            raise _refused("nothing is searched or selected on the first page", value)
        return START
    is_compat, products = engine.rules.compat, len(engine.shop.catalogue)
    if type(query) is not str or not query or "\n" in query or query != query.lower():
        raise _refused("no search has this text", query)
    if len(query) > 3 * ACTION_LIMIT:  # some characters have three in lower case
        raise _refused("no search is as long", f"{len(query):,} characters")
    least = 0 if is_compat else 1
    if type(number) is not int or not least <= number < NUMBER_LIMIT:
        raise _refused("no page of results has this number", number)
    if type(visited) is not tuple or not all(
        type(seen) is int and 0 <= seen < products for seen in visited
    ):
        raise _refused("no products have these numbers", visited)
    if len(set(visited)) != len(visited):
        raise _refused("a product was visited for the first time twice", visited)
    if type(draw) is not int or not 0 <= draw <= KEY_LIMIT:
        raise _refused("no random results have this key", draw)
    if bool(draw) != (is_compat and page == RESULTS and compat.draws(query)):
        raise _refused("only random results have a key, and they do", draw)
    _check_product(session, engine)
    subs = SUB_PAGES if engine.rules.show_attributes or is_compat else SUB_PAGES[:-1]
    if type(sub) is not str or (sub not in subs if page == SUB else sub):
        raise _refused("there is no such page below the product's", sub)
    return session


def _check_product(session: Session, engine: Engine) -> None:
    """Check the open product and what is selected."""
    page, product, options = session.page, session.product, session.options
    if type(product) is not int or type(options) is not tuple:
        raise _refused("the product is no number, or the selection no tuple", product)
    if page == RESULTS:
        if product != -1 or options:
            raise _refused("no product is open among results", (product, options))
        return
    if product not in session.visited:
        raise _refused("the open product was not visited", product)
    if not options:
        return
    if not _are_pairs(options) or len({group for group, _ in options}) != len(options):
        raise _refused("of each group one value can be selected", options)
    view = engine.view(session._replace(page=ITEM))
    for pair in options:
        target = view.targets.get(click(pair[1]), -1)
        if target < 0 or view.options[target] != pair:
            raise _refused("the product has no such option", pair)


def _refused(why: str, found: object) -> SnapshotMismatch:
    return SnapshotMismatch(
        f"Cannot restore the session: {why} (found {found!r:.80}). The running episode is "
        "unchanged."
    )
