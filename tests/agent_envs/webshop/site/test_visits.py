"""What the server remembers: as little as it can, and never of someone else."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from agent_envs.webshop.model import Purchase, RewardInfo
from agent_envs.webshop.site.visits import OPENED_LIMIT, Visits, fixed_goal
from tests.agent_envs.webshop import shops

GOALS = shops.shop().goals("human")
INFO = RewardInfo(1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.5)


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def purchase(number: int) -> Purchase:
    return Purchase(number, (), 1.0, 1.0, INFO)


def test_ids_cannot_be_guessed() -> None:
    visits = Visits()
    ids = {visits.begin(GOALS[0], "t").sid for _ in range(2_000)}
    assert len(ids) == 2_000
    assert min(map(len, ids)) >= 22  # 128 bits in base64
    # No id shares a longer beginning with another one than chance would have it.
    listed = sorted(ids)
    assert all(a[:8] != b[:8] for a, b in pairwise(listed))


@pytest.mark.parametrize(
    ("sid", "number"),
    [
        ("fixed_0", 0),
        ("fixed_12", 12),
        ("my-fixed_run_7", 7),
        ("fixed_012", 12),
        ("fixed_", None),
        ("fixed", None),
        ("fixed_-1", None),
        ("fixed_1x", None),
        ("other_1", None),
        ("fixed_１", None),
        ("fixed_" + "9" * 13, None),
        ("../fixed_1", None),
        ("fixed_1\n", None),
        ("fixed_1 ", None),
        ("x" * 60 + "fixed_1", None),
    ],
)
def test_ids_of_the_original_name_a_goal(sid: str, number: int | None) -> None:
    assert fixed_goal(sid) == number


def test_the_number_of_visits_is_bounded() -> None:
    visits = Visits(limit=3)
    first, second, third = (visits.begin(GOALS[0], "t").sid for _ in range(3))
    assert visits.find(first) is not None  # used last now
    fourth = visits.begin(GOALS[1], "t").sid
    assert len(visits) == 3
    assert visits.find(second) is None
    assert all(visits.find(sid) is not None for sid in (first, third, fourth))


def test_visits_expire() -> None:
    clock = Clock()
    visits = Visits(lifetime_s=100, clock=clock)
    old, used = visits.begin(GOALS[0], "t").sid, visits.begin(GOALS[0], "t").sid
    clock.now = 60
    assert visits.find(used) is not None
    clock.now = 101
    assert visits.find(old) is None
    assert visits.find(used) is not None
    assert len(visits) == 1


def test_what_is_kept_of_a_visit_is_bounded() -> None:
    visits = Visits()
    sid = visits.begin(GOALS[0], "t").sid
    for number in range(OPENED_LIMIT + 50):
        visits.at_product(sid, number)
    visit = visits.find(sid)
    assert visit is not None
    assert visit.opened == visit.visited == tuple(range(50, OPENED_LIMIT + 50))


def test_the_first_purchase_counts() -> None:
    visits = Visits()
    sid = visits.begin(GOALS[0], "t").sid
    assert visits.buy(sid, purchase(1)) == purchase(1)
    assert visits.buy(sid, purchase(2)) == purchase(1)
    assert visits.buy("nobody", purchase(2)) is None


def test_the_first_page_begins_a_done_errand_anew() -> None:
    visits = Visits()
    sid = visits.begin(GOALS[2], "t").sid
    visits.at_product(sid, 4)
    visits.at_first_page(sid)
    visit = visits.find(sid)
    assert visit is not None
    assert (visit.visited, visit.opened) == ((), (4,))  # the tab of product 4 may still be open
    visits.buy(sid, purchase(4))
    visits.at_first_page(sid)
    visit = visits.find(sid)
    assert visit is not None
    assert (visit.opened, visit.purchase, visit.goal) == ((), None, GOALS[2])


def test_threads_do_not_lose_updates() -> None:
    visits = Visits()
    sids = [visits.begin(GOALS[0], "t").sid for _ in range(4)]

    def browse(start: int) -> None:
        for number in range(start, 200, 8):
            for sid in sids:
                visits.at_product(sid, number)

    threads = [threading.Thread(target=browse, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sid in sids:
        visit = visits.find(sid)
        assert visit is not None
        assert sorted(visit.opened) == list(range(200))
