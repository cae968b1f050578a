"""Small planning tasks, and how processes and files that are left behind are found."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

LINE = """(define (domain line)
  (:requirements :strips :typing :negative-preconditions)
  (:types thing place)
  (:predicates (at ?x - thing ?p - place) (next ?a ?b - place))
  (:action Move
    :parameters (?x - thing ?a ?b - place)
    :precondition (and (at ?x ?a) (next ?a ?b))
    :effect (and (at ?x ?b) (not (at ?x ?a)))))"""
"""Things move from place to place."""


def line(
    names: tuple[str, ...], places: tuple[str, ...], goal: str, *, broken: bool = False
) -> str:
    """A problem of `LINE`: all things start at the first place; `broken`: no way to the last."""
    steps = list(pairwise(places))[: -1 if broken else None]
    ways = " ".join(f"(next {a} {b}) (next {b} {a})" for a, b in steps)
    return (
        f"(define (problem p) (:domain line) (:objects {' '.join(names)} - thing "
        f"{' '.join(places)} - place) (:init {' '.join(f'(at {n} {places[0]})' for n in names)} "
        f"{ways}) (:goal {goal}))"
    )


def crowd(things: int, places: int) -> str:
    """All things have to get to the other end: too many states for a blind search."""
    names = tuple(f"x{i}" for i in range(things))
    spots = tuple(f"p{i}" for i in range(places))
    return line(names, spots, f"(and {' '.join(f'(at {n} {spots[-1]})' for n in names)})")


def oversized(width: int = 9, things: int = 60) -> tuple[str, str]:
    """A domain and problem whose instances of one action no translator can list."""
    variables = [f"?v{i}" for i in range(width)]
    domain = (
        "(define (domain big) (:requirements :strips) (:predicates (free ?x) (used ?x) (done)) "
        f"(:action all :parameters ({' '.join(variables)}) :precondition "
        f"(and {' '.join(f'(free {v})' for v in variables)}) "
        f":effect (and (done) {' '.join(f'(used {v})' for v in variables)})))"
    )
    names = [f"o{i}" for i in range(things)]
    problem = (
        f"(define (problem p) (:domain big) (:objects {' '.join(names)}) "
        f"(:init {' '.join(f'(free {n})' for n in names)}) (:goal (done)))"
    )
    return domain, problem


def processes_in(folder: Path) -> list[int]:
    """Ids of the processes that work in a folder below `folder`, removed ones included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where.startswith(f"{folder}{os.sep}"):
                found.append(int(entry.name))
    return found
