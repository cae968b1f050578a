"""Every method of the numeric vectors, evaluated with this package's own functions.

One small adapter per method, in the file of its family: it reads the case's parameters, calls the
public function and returns the value in the layout of the file. `trainer.verify_vectors` compares.
"""

from __future__ import annotations

from trainer.vectors import grpo, losses, projection, sero
from trainer.vectors.params import AuxMethod, BaseMethod

BASE_METHODS: dict[str, BaseMethod] = {
    **grpo.METHODS,
    **losses.METHODS,
    **projection.METHODS,
}

AUX_METHODS: dict[tuple[str, str], AuxMethod] = {
    **sero.METHODS,
}
