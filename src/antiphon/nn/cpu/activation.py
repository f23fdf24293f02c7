"""The vocoder's activation as one compiled pass over memory: x + sin^2(x f) m, f and m per channel.

A sine of one's own costs a tenth of the library's: sin^2 has the period pi, so its argument is brought within
half of that and needs one polynomial, right to fp32's last bit. The pass also puts what a stream remembers
before its values and takes from their end what it will remember, which would be two more passes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphon.nn.cpu.compiler import compiled_in_order
from antiphon.nn.cpu.openmp import copy

Floats = NDArray[np.float32]

PI_HIGH = np.float32(np.pi)
PI_LOW = np.float32(np.pi - float(PI_HIGH))
PER_PI = np.float32(1 / np.pi)
ROUND = np.float32(1.5 * 2**23)
"""Added and subtracted, it rounds a float below 2^22 to a whole number."""

S0, S1 = np.float32(-1.66666571e-1), np.float32(8.33301729e-3)
S2, S3 = np.float32(-1.98066151e-4), np.float32(2.60005464e-6)
"""sin r = r + r^3 (S0 + S1 r^2 + S2 r^4 + S3 r^6) within 5e-9 for |r| <= pi / 2: a minimax fit."""


@compiled_in_order
def activation(x: np.float32, frequency: np.float32, magnitude: np.float32) -> np.float32:
    angle = x * frequency
    turns = (angle * PER_PI + ROUND) - ROUND
    rest = (angle - turns * PI_HIGH) - turns * PI_LOW
    square = rest * rest
    sine = rest + rest * square * (S0 + square * (S1 + square * (S2 + square * S3)))
    return x + magnitude * (sine * sine)


@compiled_in_order
def snake_in_place(x: Floats, frequency: Floats, magnitude: Floats) -> None:
    """x [b, n, c]; `frequency` and `magnitude` [r c] as in `snake`."""
    values, run = x.reshape(-1), len(frequency)
    for start in range(0, len(values), run):
        part = values[start : start + run]
        for i in range(len(part)):
            part[i] = activation(part[i], frequency[i], magnitude[i])


@compiled_in_order
def snake(old: Floats, x: Floats, frequency: Floats, magnitude: Floats, out: Floats, kept: Floats) -> None:
    """old [b, m, c] before the activation of x [b, n, c] -> out [b, m + n, c], its end -> kept [b, k, c].

    `frequency` and `magnitude` [r c] repeat their c values over a run of memory that is long enough for the
    processor.
    """
    run = len(frequency)
    for row in range(len(x)):
        first, values, result = old[row].reshape(-1), x[row].reshape(-1), out[row].reshape(-1)
        copy(first, result[: len(first)])
        for start in range(0, len(values), run):
            part, to = values[start : start + run], result[len(first) + start :]
            for i in range(len(part)):
                to[i] = activation(part[i], frequency[i], magnitude[i])
        last = kept[row].reshape(-1)
        copy(result[len(result) - len(last) :], last)
