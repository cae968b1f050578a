"""The report: self-contained, escaped, and showing the numbers it was given."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Config, resolve
from trainer.report import (
    BranchView,
    Evaluation,
    Example,
    ReportData,
    Step,
    read_run,
    render,
    write_report,
)
from trainer.report.charts import Panel, curves, phase_bar, phase_stack, success_by_type
from trainer.report.data import how_it_ended, idle, lost_groups, phase_totals, series, step_notes
from trainer.report.methods import figures_of
from trainer.runs.folder import RunFolderError

EVIL = "<script>alert('x')</script>\"'&"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class _Page(HTMLParser):
    """Collects the text and the tags, and checks that tags nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def _data(text: str = "plain") -> ReportData:
    steps = [Step(f"seen {text} {i}", f"do {text} {i}", i != 1) for i in range(3)]
    branch = [Step(f"branch {text}", f"go {text}", True, weight) for weight in (1.0, 0.25)]
    return ReportData(
        title=f"title {text}",
        lead=f"lead {text}",
        facts=[(f"name {text}", f"value {text}")],
        evaluations=[
            Evaluation(f"before {text}", "valid_seen", {f"type {text}": (1, 10), "b": (2, 10)}),
            Evaluation("after", "valid_seen", {f"type {text}": (6, 10), "b": (7, 10)}),
        ],
        metrics=[
            {"iteration": i, "success_rate": 0.1 * i, "sero/z": None, "time/collect": 2.0,
             "time/update": 1.0, f"time/{text}": 1.0, f"aux {text}/{text}": 0.5 + i}
            for i in range(4)
        ],
        example=Example(
            f"goal {text}", f"kind {text}", steps, False, 1, BranchView(branch, True, 1.0, text)
        ),
        provenance={f"key {text}": f"value {text}"},
        auxiliary=[f"aux {text}"],
        notes=[f"note {text}"],
        stop=f"stopped {text}",
    )  # fmt: skip


def test_numbers_are_on_the_page() -> None:
    page = _Page(render(_data()))
    # 3 of 20 before, 13 of 20 after; Wilson's interval of 13/20 is 43.3 % to 81.9 %.
    assert "15.0% → 65.0%" in page.text
    assert "13 of 20 tasks, 95 % interval 43.3–81.9%" in page.text
    assert "w 1.00" in page.text
    assert "w 0.25" in page.text
    assert "16 seconds in 4 iterations" in page.text
    # Three steps of the student, the branch at the second: one before it, two beside the oracle.
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "li"]
    assert kinds == ["", "root", "root", "oracle", "oracle"]
    assert page.text.index("do plain 1") < page.text.index("go plain")


def test_scores_are_shown_where_they_say_more_than_success() -> None:
    def page(*scores: float | None) -> str:
        groups = {"synthetic": (1, 4)}
        evaluations = [Evaluation(f"e{i}", "val", groups, s) for i, s in enumerate(scores)]
        return _Page(render(ReportData("t", "l", evaluations=evaluations))).text

    assert "mean score" not in page(None)
    assert "mean score" not in page(0.25)
    assert "25.0%4.6–69.9%0.613" in page(0.6126)
    assert "mean score" in page(0.25, 0.6126)
    assert "69.9%0.250" in page(0.25, 0.6126)
    assert "69.9%–" in page(None, 0.6126)


def test_everything_from_outside_is_escaped() -> None:
    page = render(_data(EVIL))
    assert "<script" not in page
    assert "alert(" in _Page(page).text


def test_what_no_page_can_hold_is_made_visible(tmp_path: Path) -> None:
    path = write_report(_data("a\x00b\x1b[31mc\ud800d\u202e"), tmp_path / "report.html")
    page = path.read_text(encoding="utf-8")
    assert r"a\x00b\x1b[31mc\ud800d\u202e" in _Page(page).text
    assert not set(page) & set("\x00\x1b\u202e")


@pytest.mark.parametrize(
    "groups", [{"put": {"wins": 5, "n": 3}}, {"put": {"wins": "x", "n": 3}}, [], {"put": 1}, None]
)
def test_a_run_with_an_evaluation_that_cannot_be_is_refused(tmp_path: Path, groups: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"config": resolve(Config())}))
    (tmp_path / "eval").mkdir()
    result = {"iteration": 0, "split": "valid_seen", "by_task_type": {"put": {"wins": 1, "n": 3}}}
    file = tmp_path / "eval/000000_valid_seen.json"
    file.write_text(json.dumps(result))
    assert read_run(tmp_path, title="", lead="").evaluations[0].tasks == 3
    file.write_text(json.dumps(result | {"by_task_type": groups}))
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_run(tmp_path, title="", lead="")


def test_a_dollar_sign_is_no_formula() -> None:
    price = r"$5 or \nope{$9"
    assert price in _Page(render(_data(price))).text


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = _Page(render(_data()))
    assert not {tag for tag, _ in page.tags} & {"link", "script", "iframe", "object", "img"}
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, value)
    assert not re.search(r"@import|url\((?!#)", render(_data()))


def test_same_input_same_page() -> None:
    assert render(_data()) == render(_data())


def test_a_report_without_anything_still_renders() -> None:
    page = _Page(render(ReportData(title="empty", lead="nothing yet")))
    assert "nothing yet" in page.text
    assert "<section" not in render(ReportData(title="empty", lead="nothing yet"))


def test_series_leave_out_what_has_no_value() -> None:
    rows = [{"iteration": 0, "a": 1}, {"iteration": 1, "a": None}, {"iteration": 2, "a": 0.0}]
    assert series(rows, "a") == ([1.0, 3.0], [1.0, 0.0])
    assert series(rows, "b") == ([], [])


def test_phase_totals_sum_and_sort() -> None:
    rows = [{"time/a": 1.0, "time/b": 3.0, "tokens_per_s": 9.0}, {"time/a": 1.5, "time/b": None}]
    assert list(phase_totals(rows).items()) == [("b", 3.0), ("a", 2.5)]


def test_charts_without_data_are_left_out() -> None:
    assert success_by_type([]) == ""
    assert success_by_type([Evaluation("x", "s", {})]) == ""
    assert phase_bar({}) == ""
    assert "<svg" in success_by_type([Evaluation("x", "s", {"a": (0, 0)})])


@pytest.mark.parametrize(
    ("iterations", "ticks"),
    [([3], ["3", "4", "5"]), ([0, 1], ["1", "2"]), ([0, 1, 2], ["1", "2", "3"])],
)
def test_iterations_are_whole_numbers(iterations: list[int], ticks: list[str]) -> None:
    metrics = [{"iteration": i, "entropy": 0.5} for i in iterations]
    svg = curves(metrics, Panel("Entropy", (("entropy", "entropy"),)))
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    own = labels[: labels.index("iteration")]
    assert own == ticks


def test_one_iteration_is_singular() -> None:
    one = {"iteration": 0, "time/update": 2.0}
    assert "2 seconds in 1 iteration, eval" in render(ReportData("t", "l", metrics=[one]))


def test_auxiliary_objectives_that_trained_nothing_are_named() -> None:
    metrics = [
        {"loss/sero": None, "seed/skill_valid": 0.0, "seed/loss": None, "seed/skill_calls": 1.0,
         "loss/sft": 0.7, "dagger/rows": 0, "dagger/invalid_reasons": {"too_long": 2}},
        {"loss/sero": 0.2, "seed/skill_valid": 0.0, "seed/loss": None, "seed/skill_calls": 1.0,
         "dagger/rows": 0, "dagger/invalid_reasons": {"too_long": 1, "stuck": 1}},
    ]  # fmt: skip
    assert idle(metrics, ["sero", "seed", "sft", "dagger", "opid"]) == [
        "seed trained nothing in 2 iterations: seed/skill_valid 0",
        "dagger trained nothing in 2 iterations: dagger/rows 0, too_long: 3, stuck: 1",
        "opid trained nothing in 2 iterations",
    ]
    assert idle(metrics[1:], ["sft"]) == ["sft trained nothing in 1 iteration"]
    assert idle([], ["sft"]) == []
    evidence = ("luffy/rows", "opid/added_abs_mean", "opd/gap_mean", "serl/u_mean", "seed/loss")
    for key in evidence:
        assert idle([{key: -0.5}], [key.split("/")[0]]) == []
        assert len(idle([{key: None}], [key.split("/")[0]])) == 1
    page = render(ReportData("t", "l", metrics=[{"entropy": 1.0}], idle=["<seed> nothing"]))
    assert "<b>&lt;seed&gt; nothing</b>" in page


def test_groups_that_all_ended_alike_are_told() -> None:
    alike = {"frac_degenerate_groups": 1.0, "score_mean": 0.0, "success_rate": 0.0}
    (line,) = lost_groups([alike] * 3, "grpo")
    assert line.startswith("All rollouts of a task ended alike in 3 iterations")
    assert "grpo had nothing of the tasks to learn" in line
    assert lost_groups([alike, alike | {"frac_degenerate_groups": 0.5}], "grpo") == []
    assert lost_groups([alike | {"score_mean": 0.3}], "grpo") == [], "scores may differ"
    assert lost_groups([], "grpo") == []


def test_what_an_idle_objective_lacked_is_said() -> None:
    turns = [{"turns": 6, "format_valid_share": 0.0, "success_rate": 0.0}] * 2
    assert idle(turns, ["format_only", "expert_iteration", "opid"]) == [
        "format_only trained nothing in 2 iterations: no reply had the required form "
        "(format_valid_share 0)",
        "expert_iteration trained nothing in 2 iterations: no rollout solved its task "
        "(success_rate 0)",
        "opid trained nothing in 2 iterations",
    ]
    some = [*turns, {"turns": 6, "format_valid_share": 0.5}]
    assert idle(some, ["format_only"]) == ["format_only trained nothing in 3 iterations"]
    none = [{"turns": 0, "format_valid_share": None}]
    assert idle(none, ["opid"]) == ["opid trained nothing in 1 iteration: no turn was played"]


def test_rollouts_that_ended_by_their_prompts_are_warned_of() -> None:
    rows = [
        {"context_overflow_share": 1.0, "context_overflow_longest": 700},
        {"context_overflow_share": 0.5, "context_overflow_longest": 812},
    ]
    (note,) = step_notes(rows, 512)
    assert note.startswith("WARNING: 75% of the rollouts ended because the next prompt was longer")
    assert "prompt.max_prompt_tokens=512; the longest had 812 tokens" in note
    assert step_notes([rows[1]], 512) == []
    assert step_notes([{"entropy": 1.0}]) == []


def test_short_names_of_sero_are_explained() -> None:
    rows = [{"sero/z": 0.5, "sero/z_root": 0.6, "sero/effective_depth": 1.5, "sero/rows": 2}]
    page = render(ReportData("t", "l", metrics=rows, auxiliary=["sero"]))
    assert page.count("z root: ") >= 1
    assert "effective depth: sum of a branch&#x27;s weights" in page
    assert "effective depth" not in render(ReportData("t", "l", metrics=[{"entropy": 1.0}]))


def test_an_auxiliary_objective_shows_its_figures_the_loss_first() -> None:
    metrics = [
        {"opid/depth": 2, "opid/rows": 4, "loss/opid": 0.5, "opid/why": {"stuck": 1}, "opidx/a": 1},
        {"opid/depth": None, "opid/rows": 6, "loss/opid": 0.25, "opid/on": True, "opid/flat": 1.0},
        {"opid/flat": 1.0},
    ]
    assert figures_of(metrics, "opid") == ["loss/opid", "opid/rows", "opid/depth", "opid/flat"]
    page = _Page(render(ReportData("t", "l", metrics=metrics, auxiliary=["opid", "sdar"])))
    assert page.text.count("Auxiliary objective") == 1, "sdar has no figure"
    # first, last, mean, and in how many iterations it had a value
    assert "loss0.50.250.3752" in page.text
    assert "rows4652" in page.text
    assert "depth2221" in page.text
    charts = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    assert charts == ["loss, over the iterations", "rows, over the iterations"], "what moves"


def test_what_has_a_chart_among_the_branches_gets_no_second_one() -> None:
    metrics = [{"sero/z": 0.1 * i, "sero/roots": i} for i in range(3)]
    page = _Page(render(ReportData("t", "l", metrics=metrics, auxiliary=["sero"])))
    charts = [a["aria-label"] for tag, a in page.tags if tag == "svg"]
    assert charts == ["Reach, over the iterations", "roots, over the iterations"]
    assert "z00.20.13" in page.text


def test_steps_that_were_left_out_are_noted() -> None:
    rows = [
        {"optimizer_steps": 1, "skipped_steps": 1, "critic/nonfinite_steps": 1},
        {"optimizer_steps": 7, "skipped_steps": 2, "nonfinite_steps": 1,
         "critic/nonfinite_steps": None, "nonfinite_figures": 1},
    ]  # fmt: skip
    assert step_notes(rows) == [
        "2 of 10 optimiser steps had nothing to learn from and changed nothing",
        "1 of 10 optimiser steps refused: the gradient was not finite",
        "1 step of the critic refused: the gradient was not finite",
        "1 figure of the log had no finite value and stand as null",
    ]
    assert step_notes([{"optimizer_steps": 7, "skipped_steps": 0, "nonfinite_steps": 0}]) == []
    assert step_notes([]) == []


def test_how_a_run_ended_is_on_its_page(tmp_path: Path) -> None:
    assert how_it_ended(1, 1) == "finished, 1 iteration"
    config = resolve(Config().replace(**{"run.iterations": 4, "auxiliary.format_only.weight": 1}))
    (tmp_path / "run.json").write_text(json.dumps({"config": config}))
    line = {"iteration": 1, "optimizer_steps": 1, "skipped_steps": 3}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    found = read_run(tmp_path, title="", lead="")
    assert found.stop == "2 of 4 iterations so far"
    assert found.auxiliary == ["format_only"]
    page = _Page(render(found)).text
    assert "3 of 4 optimiser steps had nothing to learn from" in page
    for stop, told in (
        ("running", "2 of 4 iterations so far"),
        ("early_stop", "stopped early after 2 of 4 iterations: no progress in evaluations"),
        ("asked", "stopped after 2 of 4 iterations, as asked"),
        ("nonfinite", "broken off after 2 of 4 iterations: no gradient was finite any more"),
    ):
        (tmp_path / "status.json").write_text(json.dumps({"stop": stop}))
        stopped = read_run(tmp_path, title="", lead="")
        assert stopped.stop == told
        assert told in _Page(render(stopped)).text
    (tmp_path / "status.json").write_text("[]")
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_run(tmp_path, title="", lead="")


def test_speed_shows_the_rates_that_were_logged() -> None:
    row = {"time/update": 2.0, "tokens_per_s": 5.0, "perf/tokens_per_s": 7.0, "perf/mfu": None}

    def charts(*rows: dict[str, Any]) -> list[str | None]:
        page = _Page(render(ReportData("t", "l", metrics=rows)))
        return [a["aria-label"] for tag, a in page.tags if tag == "svg"]

    stack = "Seconds of each phase, over the iterations"
    overall = "Tokens a second, all phases, over the iterations"
    assert charts({"iteration": 0, **row}) == [stack, overall]
    assert charts({"iteration": 0, "time/update": 2.0, "tokens_per_s": 5.0}) == [stack, overall]
    assert charts({"iteration": 0, **row, "perf/mfu": 0.1}) == [
        stack, overall, "Model FLOP utilisation, over the iterations",
    ]  # fmt: skip


def test_the_stack_has_the_colours_of_the_bar_and_a_width_for_one_iteration() -> None:
    rows = [{"iteration": 4, "time/a": 1.0, "time/b": 3.0, "time/c": None}]
    totals = phase_totals(rows)
    svg = phase_stack(rows, totals)
    for colour in ("#0c7286", "#3cc9db"):
        assert svg.count(f"fill: {colour}") == 1
        assert f"background:{colour}" in phase_bar(totals)
    xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", svg)]
    assert max(xs) - min(xs) > 100
    assert phase_stack([{"iteration": 0}], {}) == phase_stack([], {"a": 1.0}) == ""
