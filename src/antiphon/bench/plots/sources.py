"""From files to what is drawn: logs of runs and records, by the kind of plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.bench.logfile import read
from antiphon.bench.plots.frontier import Point
from antiphon.bench.trace import KvSample, kv_samples, read_residency
from antiphon.core.errors import ConfigError, system_words
from antiphon.metrics import latency
from antiphon.metrics.names import Figure
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import ResponseRow, Run
from antiphon.metrics.summary import figures

SPREADS: dict[str, Callable[[Iterable[ResponseRow]], list[float]]] = {
    Figure.TTFP_S: latency.ttfp_s,
    Figure.TURN_LATENCY_S: latency.turn_latency_s,
    Figure.TTFT_S: latency.ttft_s,
    Figure.TRANSCRIPT_TTFT_S: latency.transcript_ttft_s,
    Figure.TPOT_S: latency.tpot_s,
    Figure.JCT_S: latency.jct_s,
    Figure.NORMALISED_LATENCY_S: latency.normalised_latency_s,
    Figure.RTF: latency.rtf,
    Figure.AUDIO_RTF: latency.audio_rtf,
}
"""Figures with one value a response."""


def read_run(path: Path) -> Run:
    """A log of a run, folded. Raises ConfigError with file and line for what is no log."""
    run = fold(read(path))
    if run.started is None:
        raise ConfigError(f"{path} is not the log of a run: it does not begin with RunStarted")
    return run


def label_of(run: Run) -> str:
    assert run.started is not None
    return run.started.label


def concurrency_of(run: Run) -> float | None:
    """How many were kept talking at once; None if the workload's arrivals decided that."""
    assert run.started is not None
    load = run.started.options.get("load", {})
    return load.get("closed", {}).get("concurrency")


def points(paths: Sequence[Path]) -> list[Point]:
    """A point per log. Raises ConfigError for a log without concurrency, TTFP or completed requests."""
    return [_point(path, read_run(path)) for path in paths]


def spreads(paths: Sequence[Path], figure: str) -> dict[str, NDArray[np.float64]]:
    """Values of `figure` by label; logs alike in label and concurrency (seeds) are put together."""
    if figure not in SPREADS:
        raise ConfigError(f"no figure {figure!r} with a value per response; known: {', '.join(SPREADS)}")
    found: dict[tuple[str, float | None], list[float]] = {}
    for path in paths:
        run = read_run(path)
        found.setdefault((label_of(run), concurrency_of(run)), []).extend(SPREADS[figure](run.responses))
    is_swept = len({concurrency for _, concurrency in found}) > 1
    return {_curve(*key, is_swept): np.array(values, float) for key, values in found.items()}


def replies(paths: Sequence[Path], response: str | None = None) -> list[ResponseRow]:
    """Replies of all logs, or the one named. Raises ConfigError if there is none of that name."""
    rows = [row for path in paths for row in read_run(path).responses]
    if response is None:
        return rows
    named = [row for row in rows if row.response == response]
    if not named:
        raise ConfigError(f"no response {response!r} in {', '.join(str(path) for path in paths)}")
    return named


def residency(path: Path, preset: str = "") -> list[KvSample]:
    """KV blocks over time: of a record, or of a log with samples of the server. `preset`: as `replay`
    takes it."""
    if is_log(path):
        samples = read_run(path).samples
        return [found for sample in samples for found in kv_samples(sample.t_s, sample.values)]
    return read_residency(path, preset)


def is_log(path: Path) -> bool:
    """Logs are lines of JSON objects; a record begins with a length."""
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {system_words(error)}") from None


def _curve(label: str, concurrency: float | None, is_swept: bool) -> str:
    return label if concurrency is None or not is_swept else f"{label}, {concurrency:g} at once"


def _point(path: Path, run: Run) -> Point:
    found = figures(run)
    wanted = (Figure.TTFP_S.at("p90"), Figure.COMPLETED_RPS)
    missing = [key for key in wanted if key not in found]
    concurrency = concurrency_of(run)
    if missing or concurrency is None:
        raise ConfigError(
            f"{path} is not a point of a frontier: it lacks {', '.join(missing) or 'a bound concurrency'}"
        )
    return Point(label_of(run), concurrency, found[wanted[0]], found[wanted[1]])
