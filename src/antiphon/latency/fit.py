"""From measurements to models: least squares of relative errors, with no figure below zero.

A ladder enters the system as its first value and its rises from knot to knot, so a fitted one never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from antiphon.core.facts import Floats, Mask
from antiphon.latency.features import ArFeatures, CodecFeatures, EncodeFeatures, SpeechFeatures
from antiphon.latency.ladder import Ladder
from antiphon.latency.models import ArModel, AttentionModel, CodecModel, EncoderModel, LinkModel, SpeechModel
from antiphon.latency.profile import Residuals

Columns = dict[str, Floats]

TOLERANCE = 1e-9


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that minimises |matrix x - target|: the active sets of Lawson and Hanson (1974), over
    columns brought to length one."""
    norms = np.linalg.norm(matrix, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    unit = matrix / scale
    x = np.zeros(matrix.shape[1])
    free = np.zeros(len(x), np.bool_)
    for _ in range(3 * len(x)):
        rise = np.where(free | (norms == 0), -np.inf, unit.T @ (target - unit @ x))
        best = int(rise.argmax()) if len(x) else 0
        if not len(x) or rise[best] <= TOLERANCE * max(float(np.linalg.norm(target)), TOLERANCE):
            break
        free[best] = True
        x = _descend(unit, target, x, free)
    return x / scale


def _descend(matrix: Floats, target: Floats, x: Floats, free: Mask) -> Floats:
    """Least squares over the free columns; those that would fall below zero are held at it, one by one."""
    while True:
        goal = np.zeros_like(x)
        goal[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        below = free & (goal <= 0)
        if not below.any():
            return goal
        room = x[below] / np.maximum(x[below] - goal[below], 1e-300)
        x = x + float(room.min()) * (goal - x)
        free &= x > 1e-15 * max(float(x.max()), 1e-300)
        x = np.where(free, x, 0.0)
        if not free.any():
            return x


def solve(columns: Columns, seconds: Floats) -> dict[str, float]:
    """Non-negative figures by name that predict `seconds` > 0, every error relative to what was measured."""
    names = list(columns)
    matrix = np.stack([columns[name] for name in names], 1) / seconds[:, None]
    return dict(zip(names, nnls(matrix, np.ones(len(seconds))).tolist(), strict=True))


def fit_ar(
    samples: Sequence[tuple[ArFeatures, float]],
    *,
    layers: int,
    dense_at: Sequence[int],
    draws_at: Sequence[int],
    has_frame: bool = False,
    step_s: float = 0.0,
) -> ArModel:
    """All parts of a decoder's step at once, from (features, seconds).

    dense_at  knots of f_D, as Algorithm 1 found them; draws_at those of f_head, or of f_frame where a stage
    has one: what such a stage's head takes is in its frame
    step_s    what a step without rows takes: the steps of a fit all have some
    """
    seconds = np.array([seconds for _, seconds in samples])
    columns = _ar_columns([features for features, _ in samples], dense_at, draws_at)
    found = solve(columns, np.maximum(seconds - step_s, 0.05 * seconds))
    dense = _ladder("dense", dense_at, found, 1.0 / layers)
    draws = _ladder("draws", draws_at, found, 1.0)
    return ArModel(
        layers=layers,
        dense=dense,
        head=Ladder((1,), (0.0,)) if has_frame else draws,
        decode=AttentionModel(*(found[name] / layers for name in ("token", "row", "base"))),
        pair_s=found["pair"] / layers,
        chunk_s=found["chunk"] / layers,
        frame=draws if has_frame else None,
        step_s=step_s,
        row_s=found["prefill_row"],
        join_s=found["join"],
        join_token_s=found["join_token"],
    )


def _ar_columns(samples: Sequence[ArFeatures], dense_at: Sequence[int], draws_at: Sequence[int]) -> Columns:
    """What each figure of a decoder's step is multiplied with; layers count once."""
    by_name = dict(zip(ArFeatures._fields, np.array(samples, np.float64).T, strict=True))
    dense = _rises("dense", by_name["num_tokens"], dense_at)
    return dense | {
        **_rises("draws", by_name["emits"], draws_at),
        "pair": by_name["prefill_load"],
        "chunk": (by_name["prefill_load"] > 0).astype(np.float64),
        "token": by_name["decode_load"],
        "row": by_name["decode_rows"],
        "base": (by_name["decode_rows"] > 0).astype(np.float64),
        "prefill_row": by_name["prefill_rows"],
        "join": by_name["joins"],
        "join_token": by_name["join_tokens"],
    }


def fit_codec(samples: Sequence[tuple[CodecFeatures, float]]) -> CodecModel:
    found = _fit_linear(samples, CodecFeatures._fields)
    return CodecModel(found["step"], found["groups"], found["streams"], found["frames"])


def fit_encoder(
    samples: Sequence[tuple[EncodeFeatures, float]], most_tokens: int | None = None
) -> EncoderModel:
    """`most_tokens` of a picture, as the features were made with."""
    found = _fit_linear(samples, EncodeFeatures._fields)
    figures = (found[name] for name in EncodeFeatures._fields)
    return EncoderModel(found["step"], *figures, most_tokens=most_tokens)


def fit_speech(samples: Sequence[tuple[SpeechFeatures, float]]) -> SpeechModel:
    found = _fit_linear(samples, SpeechFeatures._fields)
    return SpeechModel(found["step"], *(found[name] for name in SpeechFeatures._fields))


def fit_attention(samples: Sequence[tuple[int, int, float]]) -> AttentionModel:
    """Eq. (3) from (load, rows, seconds)."""
    load, rows, seconds = np.array(samples, np.float64).T
    found = solve({"token": load, "row": rows, "base": np.ones_like(load)}, seconds)
    return AttentionModel(found["token"], found["row"], found["base"])


def fit_link(samples: Sequence[tuple[float, float]]) -> LinkModel:
    """Alpha and beta from (bytes, seconds)."""
    num_bytes, seconds = np.array(samples, np.float64).T
    found = solve({"alpha": np.ones_like(num_bytes), "beta": num_bytes}, seconds)
    return LinkModel(found["alpha"], found["beta"])


def residuals(pairs: Sequence[tuple[float, float]]) -> Residuals | None:
    """Of (predicted, measured) seconds; None of none."""
    if not pairs:
        return None
    errors = [abs(predicted - measured) / measured for predicted, measured in pairs]
    return Residuals(float(np.mean(errors)), float(np.percentile(errors, 90)), len(errors))


def dense_threshold(measure: Callable[[int], float], high: int, share: float) -> float:
    """What Algorithm 1 takes for flat: the difference between 1 token and 16, as the paper has it, but at
    least `share` of the most: where time rises steadily, as on a CPU, the paper's own would ask for hundreds
    of measurements."""
    return max(measure(min(16, high)) - measure(1), share * measure(high))


def _fit_linear(
    samples: Sequence[tuple[tuple[float, ...], float]], names: Sequence[str]
) -> Mapping[str, float]:
    """A constant, "step", and a figure per feature."""
    features = np.array([features for features, _ in samples], np.float64)
    seconds = np.array([seconds for _, seconds in samples])
    return solve({"step": np.ones_like(seconds), **dict(zip(names, features.T, strict=True))}, seconds)


def _rises(name: str, of: Floats, at: Sequence[int]) -> Columns:
    """Columns of a ladder: its value at the first knot, then what each further knot adds."""
    columns: Columns = {f"{name}.0": (of > 0).astype(np.float64)}
    for i, (low, high) in enumerate(pairwise(at), 1):
        columns[f"{name}.{i}"] = np.clip((of - low) / (high - low), 0.0, 1.0)
    return columns


def _ladder(name: str, at: Sequence[int], found: Mapping[str, float], scale: float) -> Ladder:
    rises = [found[f"{name}.{i}"] * scale for i in range(len(at))]
    return Ladder(tuple(at), tuple(np.cumsum(rises).tolist()))
