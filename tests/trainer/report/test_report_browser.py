"""The report in a browser: nothing sticks out or is too small to read, on a desk or on a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from tests.support import unavailable
from trainer.report import BranchView, Evaluation, Example, ReportData, Step, render

WIDTHS = (1280, 390)

# Runs in a copy of the page, in a frame as wide as the screen that is meant (a browser's window
# cannot be as narrow as a phone), and leaves its findings in the title, which --dump-dom shows.
# What is inside `.wide` may be wider than the page: that box scrolls by itself.
_PROBE = """<script>
for (const folded of document.querySelectorAll('details')) folded.open = true;
const wide = e => e.closest('.wide') || e.closest('defs') || e.closest('clipPath');
const name = e => e.tagName + '.' + (e.getAttribute('class') || '');
const all = [...document.querySelectorAll('body *')].filter(e => !wide(e));
const texts = [...document.querySelectorAll('svg text')];
const size = e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a;
parent.document.title = JSON.stringify({
  inner: innerWidth,
  scroll: document.documentElement.scrollWidth,
  out: all.filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(name),
  clipped: texts.filter(e => {
    const [text, svg] = [e, e.closest('svg')].map(x => x.getBoundingClientRect());
    return text.left < svg.left - 2 || text.right > svg.right + 2;
  }).map(e => e.textContent),
  charts: document.querySelectorAll('svg').length,
  smallest: Math.min(...texts.map(size)),
  paper: getComputedStyle(document.querySelector('section')).backgroundColor,
  ink: [...new Set(texts.map(e => getComputedStyle(e).fill))],
  series: [...new Set([...document.querySelectorAll('svg path')]
    .map(e => getComputedStyle(e).stroke))],
});
</script>"""


def _browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return unavailable("browser", "neither chromium nor google-chrome is installed")


def _data(word: str = "") -> ReportData:
    """A page with everything on it; `word` is put into every text that comes from outside."""
    types = {
        f"pick_cool_then_place_in_recep{word}": (3, 40),
        f"look_at_obj_in_light{word}": (31, 40),
    }
    steps = [Step(f"You arrive at desk 1. {word}", f"go to desk 1{word}", i != 1) for i in range(4)]
    branch = [Step(f"On the desk you see. {word}", f"take cd 1{word}", True, w) for w in (1.0, 0.1)]
    names = (
        "success_rate", "command_valid_share", "format_valid_share", "mixed_group_share",
        "entropy", "loss/policy", "loss/auxiliary", "grad/base_norm", "grad/aux_norm",
        "sero/gate_mean", "sero/gate_zero_share", "sero/z", "sero/z_root", "sero/effective_depth",
        "time/collect", "time/update", "perf/tokens_per_s", "perf/rollout_tokens_per_s",
        "perf/update_tokens_per_s", "perf/mfu", "loss/opid", f"opid/skill_share{word}",
    )  # fmt: skip
    return ReportData(
        title=f"A policy {word}",
        lead=f"It was trained. {word}",
        facts=[(f"games{word}", f"generated households{word}"), ("minutes", "6.1")],
        evaluations=[
            Evaluation(f"{label}{word}", split, types)
            for split in ("valid_seen", "valid_unseen")
            for label in ("warm start", "GRPO + SERO")
        ],
        metrics=[
            {"iteration": i, **dict.fromkeys(names, 0.1234 + 0.01 * i)} for i in range(40)
        ],
        example=Example(
            f"put a mug on the desk{word}", f"pick{word}", steps, False, 2,
            BranchView(branch, True, 1.0, word),
        ),
        provenance={f"key{word}": f"value{word}"},
        auxiliary=["opid"],
        notes=[f"3 of 40 optimiser steps refused{word}"],
        stop=f"stopped after 40 of 60 iterations: no gain{word}",
    )  # fmt: skip


def _look(tmp_path: Path, data: ReportData, width: int, *flags: str) -> dict[str, Any]:
    page = render(data).replace("</body>", f"{_PROBE}</body>")
    frame = (
        f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{escape(page)}"></iframe>'
    )
    file = tmp_path / "frame.html"
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark">'
    file.write_text(f"<!doctype html>{head}<title></title>{frame}", encoding="utf-8")
    result = subprocess.run(
        [
            _browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", *flags,
            "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    title = re.search("<title>(.*?)</title>", result.stdout, re.DOTALL)
    assert title is not None, result.stderr
    found: dict[str, Any] = json.loads(unescape(title[1]))
    return found


@pytest.mark.parametrize("word", ["", "x" * 150], ids=["usual", "long words"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_of_the_page(tmp_path: Path, width: int, word: str) -> None:
    found = _look(tmp_path, _data(word), width)
    assert found["inner"] == width
    assert found["scroll"] <= width
    assert found["out"] == []
    assert found["charts"] == 2 + 6 + 3 + 2 + 1 + 4


@pytest.mark.parametrize("width", WIDTHS)
def test_charts_can_be_read(tmp_path: Path, width: int) -> None:
    found = _look(tmp_path, _data(), width)
    assert found["smallest"] >= 9.5
    assert found["clipped"] == []


def test_a_dark_page_has_light_letters_in_its_charts(tmp_path: Path) -> None:
    light = _look(tmp_path, _data(), 1280)
    dark = _look(tmp_path, _data(), 1280, "--blink-settings=preferredColorScheme=0")
    assert _brightness(light["paper"]) > 200
    assert _brightness(dark["paper"]) < 60
    assert all(_brightness(colour) < 130 for colour in light["ink"])
    assert all(_brightness(colour) > 130 for colour in dark["ink"])
    assert not set(light["series"]) & set(dark["series"]) - {"none"}


def _brightness(colour: str) -> float:
    red, green, blue = (float(part) for part in re.findall(r"[\d.]+", colour)[:3])
    return 0.299 * red + 0.587 * green + 0.114 * blue
