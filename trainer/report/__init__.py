"""The report of a run: one self-contained HTML file, made to be read by a person."""

from __future__ import annotations

from trainer.report.data import (
    BranchView,
    Evaluation,
    Example,
    ReportData,
    Step,
    counted,
)
from trainer.report.page import render, write_report
from trainer.report.run import read_run

__all__ = [
    "BranchView",
    "Evaluation",
    "Example",
    "ReportData",
    "Step",
    "counted",
    "read_run",
    "render",
    "write_report",
]
