"""Rows for SERL's terms."""

from __future__ import annotations

import inspect
import math

import torch
from torch import tensor

NAN, INF = math.nan, math.inf

STUDENT = -tensor([[1.0, 1.0, 2.0], [1.0, 3.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
TEACHER = -tensor([[5.0, 0.9, 4.0], [0.9, 9.0, 1.0], [3.0, 3.0, 3.0]], dtype=torch.float64)
RESPONSE = tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])


def defaults(function):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
