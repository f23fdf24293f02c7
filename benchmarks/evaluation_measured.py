"""The measured half of the evaluation: the demo checkpoint, served and played over the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from evaluation_progress import Progress, curves

from antiphon.bench import server_metrics
from antiphon.bench.experiment import measure
from antiphon.bench.logfile import LogWriter, read
from antiphon.bench.servers import Launch, Servers
from antiphon.bench.servers import Target as Server
from antiphon.bench.target import DrivenServer, Pace, model_of
from antiphon.metrics.names import Metric
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import ResponseRow
from antiphon.metrics.samples import parse_key
from antiphon.metrics.slo import Slo
from antiphon.metrics.summary import figures
from antiphon.metrics.timeline import timeline
from antiphon.runtime.record import read_record
from antiphon.workload.load import changed, named
from antiphon.workload.spec import Workload

KV_TOKENS, HOST_KV_TOKENS = 512, 32768
"""Of the device: two conversations or so; and of the host."""
SERVE = ("--threads", "1", "--kv-tokens", str(KV_TOKENS), "--max-context-tokens", str(KV_TOKENS))
TOLD = ("ttfp_s.p50", "ttfp_s.p90", "rtf.p90", "continuity", "completed_rps", "turns", "cache_hit_share")
WASTED = (
    "reload_s",
    "waste_ratio",
    'waste_token_ratio{stage="thinker"}',
    'waste_token_ratio{stage="talker"}',
)
MOST_REPLIES, POINTS = 3, 60


def workload(barge_in: float, concurrency: int, sessions: int) -> Workload:
    """voice-chat of three or four turns with short pauses."""
    return changed(
        named("voice-chat"),
        {
            "load": {"closed": {"concurrency": concurrency, "sessions": sessions}},
            "people.talker.turns": {"uniform": [3, 4]},
            "people.talker.think_s": {"uniform": [0.2, 1.0]},
            "people.talker.max_output_tokens": {"uniform": [12, 36]},
            "people.talker.reply_s": {"uniform": [0.5, 3]},
            "people.talker.barge_in.probability": barge_in,
        },
    )


async def measured_run(checkpoint: str, work: Path, system: str, barge_in: float) -> dict[str, Any]:
    """One person alone first, with a record of every decision; then six at a time."""
    name = f"{system}-{barge_in:g}"
    record, log = work / f"{name}.record", work / f"{name}.jsonl"
    record.unlink(missing_ok=True)
    host = ("--host-kv-tokens", str(HOST_KV_TOKENS)) if system == "fcfs+lru" else ()
    launch = Launch(checkpoint, (*SERVE, *host, "--record", str(record.absolute())), work)
    async with Servers(launch) as servers, servers.ready(Server(name, preset="fcfs")) as server:
        target = DrivenServer(server.url, await model_of(server.url))
        await _play(target, workload(barge_in, 1, 1), 1, work / f"{name}-alone.jsonl")
        num_alone = sum(bool(row.audio_at_s.size) for row in _rows(work / f"{name}-alone.jsonl"))
        before = server_metrics.sample(target)
        await _play(target, workload(barge_in, 6, 12), 0, log)
        after = server_metrics.sample(target)
    return {
        **told(log),
        **counted(before, after),
        "alone": alone(record, num_alone),
        "frontiers": [frontier(row) for row in interrupted(_rows(log))[:MOST_REPLIES]],
    }


async def _play(target: DrivenServer, people: Workload, seed: int, path: Path) -> None:
    with LogWriter(path, force=True) as log:
        reason = await measure(people, seed, target, Pace(), log, None)
    assert reason == "finished", f"the run ended early: {reason}; see {path}"


def _rows(log: Path) -> list[ResponseRow]:
    return list(fold(read(log)).responses)


def told(log: Path) -> dict[str, float]:
    found = figures(fold(read(log)), Slo())
    return {name: round(found[name], 5) for name in (*TOLD, *WASTED) if name in found}


def counted(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    metrics = (Metric.KV_BLOCKS_EVICTED, Metric.KV_BLOCKS_RELOADED, Metric.PREEMPTIONS)
    return {
        metric.value: sum(
            value - before.get(key, 0.0) for key, value in after.items() if parse_key(key)[0] == metric
        )
        for metric in metrics
    }


def alone(record: Path, count: int) -> list[dict[str, Any]]:
    """Completion over time of the first replies, which were one at a time."""
    progress = Progress()
    for entry in read_record(record)[1]:
        progress.write(entry.now, entry.facts, entry.decision)
    return curves(progress, count)


def interrupted(rows: list[ResponseRow]) -> list[ResponseRow]:
    """Replies that a person barged into, with most unheard first."""
    found = [row for row in rows if row.barged_in and row.audio_at_s.size]
    return sorted(found, key=lambda row: row.received_s - row.heard_s, reverse=True)


def frontier(row: ResponseRow) -> dict[str, Any]:
    """Seconds of audio generated and played over time since the turn's end."""
    line = timeline(row)
    assert row.turn_ended_s is not None
    assert row.interrupted_at_s is not None
    end_s = max(row.interrupted_at_s, float(row.audio_at_s[-1])) + 1.0
    grid = np.linspace(row.turn_ended_s, end_s, POINTS)
    received = np.concatenate([[0.0], np.cumsum(row.audio_s)])
    return {
        "at_s": (grid - row.turn_ended_s).round(4).tolist(),
        "generated_s": received[np.searchsorted(row.audio_at_s, grid, side="right")].round(4).tolist(),
        "played_s": np.interp(grid, line.at_s, line.heard_s, left=0.0).round(4).tolist(),
        "barge_in_s": round(row.interrupted_at_s - row.turn_ended_s, 4),
        "unheard_s": round(row.received_s - row.heard_s, 4),
    }
