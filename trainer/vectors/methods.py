"""Every method of the numeric vectors, evaluated with this package's own functions.

One small adapter per method, in the file of its family: it reads the case's parameters, calls the
public function and returns the value in the layout of the file. `trainer.vectors.verify` compares.
"""

from __future__ import annotations

from trainer.vectors import (
    anchored,
    critic,
    distill,
    graphs,
    grpo,
    losses,
    projection,
    reinforce,
    seed,
    serl,
    sero,
)
from trainer.vectors.params import AuxMethod, BaseMethod

_BASE = (grpo, reinforce, anchored, graphs, critic, losses, projection)
_AUXILIARY = (sero, serl, seed, distill)

BASE_METHODS: dict[str, BaseMethod] = {
    name: method for family in _BASE for name, method in family.METHODS.items()
}

AUX_METHODS: dict[tuple[str, str], AuxMethod] = {
    name: method for family in _AUXILIARY for name, method in family.METHODS.items()
}
