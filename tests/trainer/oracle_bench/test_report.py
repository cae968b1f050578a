"""The page and the words of `sero bench oracle`."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.oracle_bench.hand_result import HOSTILE, result
from trainer.oracle_bench import plots
from trainer.oracle_bench.explained import sections
from trainer.oracle_bench.report import render, write_report

MODEL = ("reach", "scale", "format_drift", "sweep")


class Page(HTMLParser):
    """Counts what stands on a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


@cache
def whole_page() -> Page:
    return Page(render(result()))


def test_everything_is_on_the_page() -> None:
    page = whole_page()
    # restores, success twice, gap, overhead, z, w, gradients, two splits of the sweep
    assert page.tags.count("svg") == 10
    assert page.tags.count("figcaption") == 10
    assert page.tags.count("section") == 10  # all figures once more at the end
    for text in ("NO-GO", *result()["reasons"], "Time of a restore, µs", "unseen container 150"):
        assert text in page.words


def test_every_figure_says_what_it_means() -> None:
    page = render(result())
    found = [figure for section in sections(result()) for figure in section.figures]
    assert len(found) >= 30
    assert len({figure.meaning for figure in found}) == len(found) - 1  # two splits of the sweep
    for figure in found:
        assert figure.name
        assert figure.value
        assert re.fullmatch(r"[A-Z].*\.", figure.meaning, re.DOTALL), figure
    assert page.count("<dt>") >= len(found)
    assert page.count("</b><span>") == len(found)


def test_names_and_texts_are_escaped_everywhere() -> None:
    texts = {"env": HOSTILE, "policy": HOSTILE, "oracle": HOSTILE, "reasons": [HOSTILE],
             "not_measured": {"reach": HOSTILE}, "target": HOSTILE}  # fmt: skip
    hostile = result(**texts)
    hostile["sweep"]["rows"][0]["split"] = HOSTILE
    hostile["scale"]["rules"][HOSTILE] = 1.0
    hostile["leaks"]["by_kind"][HOSTILE] = 1
    hostile["oracle_figures"]["statuses"][HOSTILE] = 1
    text = render(hostile)
    page = Page(text)
    assert "script" not in page.tags
    assert "\x1b" not in text
    assert page.words.count("<script>alert(") > 12


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = whole_page()
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    for name, value in page.attributes:
        assert name != "src"
        assert not name.endswith("href") or str(value).startswith("#")


def test_the_same_result_makes_the_same_page(tmp_path: Path) -> None:
    paths = [write_report(result(), tmp_path / name / "report.html") for name in "ab"]
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert write_report(result(seed=1), tmp_path / "c.html").read_bytes() != first


def test_identifiers_are_used_once() -> None:
    page = whole_page()
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_without_a_model_its_sections_are_left_out_with_a_reason() -> None:
    missing = {"reach": "the policy has no model"}
    bare = result(**dict.fromkeys(MODEL), effective_depth=None, leaks=None, not_measured=missing)
    cost: dict[str, Any] = bare["cost"]
    cost |= {"iteration_from": "assumed", "token_share": None, "model_share": None}
    keys = [section.key for section in sections(bare)]
    assert keys == ["restore", "oracle", "gate", "cost", "missing"]
    page = Page(render(bare))
    assert page.tags.count("svg") == 5
    assert "The policy has no model." in page.words
    assert "60.0 s, assumed" in page.words


def test_a_result_in_which_nothing_worked_has_a_page() -> None:
    poor = result(**dict.fromkeys(MODEL), leaks=None, oracle_success=None)
    poor["restore"] |= {"share": 0.0, "exact": 0, "restores_per_s": 0.0}
    for part in poor["restore"]["by_depth"]:
        part |= {"snapshot_us": None, "restore_us": None, "bytes": None}
    none = {"wins": 0, "share": None, "low": 0.0, "high": 1.0}
    figures = poor["oracle_figures"]
    figures["from_reset"] = {"tasks": 0, **none}
    for name in ("by_depth", "by_steps_left"):
        figures[name] = [{"from": 0.0, "to": 1.0, "roots": 0, **none}]
    figures["steps"] = dict.fromkeys(("mean", "p95", "max"))
    figures["decision_us"] = dict.fromkeys(("mean", "p50", "p95", "max"))
    figures |= {"statuses": {}, "repeated": 0}
    gate = poor["gate"]
    gate |= {"by_reason": {}, "oracle_success": None, "gap_histogram": []}
    page = Page(render(poor))
    assert page.tags.count("svg") == 1  # the overhead
    assert "none succeeded" in page.words


def test_a_gradient_of_zero_has_no_chart_and_no_cosine() -> None:
    flat = result()
    flat["scale"] |= {"oracle_norm": 0.0, "cosine": None, "suggested": []}
    for row in flat["scale"]["weights"]:
        row["ratio"] = 0.0
    assert plots.gradient_ratio(flat["scale"]["weights"]) == ""
    assert "none of those measured" in Page(render(flat)).words


def test_where_no_weight_is_in_the_band_the_page_says_where_the_band_lies() -> None:
    strong = result()
    strong["scale"] |= {"base_norm": 0.1, "oracle_norm": 4.0, "suggested": []}
    assert "), but 0.0025 to 0.025" in Page(render(strong)).words


def test_an_overhead_of_almost_nothing_has_no_chart() -> None:
    cheap = result()
    cheap["cost"] |= {"overhead_share": 0.00005}
    assert Page(render(cheap)).tags.count("svg") == Page(render(result())).tags.count("svg") - 1


def test_what_an_oracle_does_not_know_is_said_in_its_words() -> None:
    lost = result()
    lost["gate"] |= {
        "invalid_by_reason": {"oracle_unsupported": 3, "oracle_over_budget": 1},
        "invalid_examples": {
            "oracle_unsupported": "oracle_unsupported: no room in the text",
            "oracle_over_budget": "oracle_over_budget: 9 of 2",
        },
    }
    words = Page(render(lost)).words.split("All figures")[0]
    assert "no room in the text" in words
    assert "9 of 2" not in words


@pytest.mark.parametrize("share", [0.0, 0.02, 0.249, 3.0])
def test_the_allowed_overhead_is_marked_wherever_the_bar_ends(share: float) -> None:
    cost = result()["cost"] | {"restore_share": share, "model_share": None}
    svg = plots.overhead_bar(cost)
    assert "allowed" in svg
    assert "model" not in Page(svg).words
