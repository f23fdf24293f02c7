"""A record as a Chrome trace, for https://ui.perfetto.dev or chrome://tracing.

Format: "Trace Event Format" (Google): phases X (a span), M (names), C (counters), b and e (async spans).
A process for the stages with a thread each, and a process for the responses. Times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon.bench.trace import KvSample, ResponseSpan, StepBar, Trace
from antiphon.core.errors import ConfigError, system_words

STAGES, RESPONSES = 1, 2

Event = dict[str, Any]


def write_perfetto(trace: Trace, samples: Sequence[KvSample], path: Path) -> None:
    """Raises ConfigError for a place that cannot be written to."""
    events = [*_names(trace), *_steps(trace), *_counters(samples), *_responses(trace)]
    try:
        path.write_bytes(msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {system_words(error)}") from None


def _names(trace: Trace) -> Iterator[Event]:
    for pid, name in ((STAGES, "stages"), (RESPONSES, "responses")):
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for tid, stage in enumerate(trace.stages, 1):
        yield {"ph": "M", "name": "thread_name", "pid": STAGES, "tid": tid, "args": {"name": stage}}
        order = {"sort_index": tid}
        yield {"ph": "M", "name": "thread_sort_index", "pid": STAGES, "tid": tid, "args": order}


def _steps(trace: Trace) -> Iterator[Event]:
    threads = {stage: tid for tid, stage in enumerate(trace.stages, 1)}
    for step in trace.steps:
        yield {
            "ph": "X",
            "name": "failed" if step.is_failed else step.work,
            "cat": "step",
            "pid": STAGES,
            "tid": threads[step.stage],
            "ts": _us(step.start_s),
            "dur": _us(step.end_s - step.start_s),
            "args": _details(step),
        }
        yield _counter(f"rows of {step.stage}", step.start_s, {"rows": step.rows})
        yield _counter(f"rows of {step.stage}", step.end_s, {"rows": 0})


def _details(step: StepBar) -> dict[str, Any]:
    return {"step": step.step, "reason": step.reason, "rows": step.rows, "tokens": step.tokens}


def _counters(samples: Sequence[KvSample]) -> Iterator[Event]:
    for sample in samples:
        yield _counter(f"KV of {sample.stage}", sample.t_s, {"used": sample.used, "idle": sample.idle})


def _responses(trace: Trace) -> Iterator[Event]:
    for span in trace.responses:
        common = {"cat": "response", "id": span.response, "pid": RESPONSES, "tid": 0, "name": _title(span)}
        yield {**common, "ph": "b", "ts": _us(span.start_s), "args": {"session": span.session}}
        yield {**common, "ph": "e", "ts": _us(span.end_s), "args": {"status": span.status}}


def _title(span: ResponseSpan) -> str:
    return f"{span.status} {span.session}"


def _counter(name: str, at_s: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": STAGES, "ts": _us(at_s), "args": values}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
