"""What the load generator costs by itself: many sessions against a server that only sends tones.

    python benchmarks/loadgen_overhead.py --sessions 64 --out benchmarks/results/loadgen-overhead-64.json

Per kind of client: CPU share (of one core), how late the event loop ran, CPU time of the loop's thread per
20 ms (what is late beyond that waited for other processes), and by how much later than the server sent it the
first audio of a reply was stamped (both processes read the same monotonic clock).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from antiphon.bench import provenance
from antiphon.bench.cost import TICK_S, LoopLag
from antiphon.bench.logfile import LogWriter, read
from antiphon.bench.run import run
from antiphon.bench.target import DrivenServer, Pace, get
from antiphon.bench.voice import Voices
from antiphon.core.rng import stream
from antiphon.metrics.log import AudioDelta, ResponseEnded, SessionEnded
from antiphon.workload.script import Acks, PersonScript, Script, TurnScript, Voiced

SERVER = Path(__file__).parent.parent / "tests" / "bench" / "fake_server.py"


def people() -> Iterator[Script]:
    """Without end: they talk for 1.5 to 3 s, hear 3 s, think up to 1 s, and report what they heard."""
    number = 0
    while True:
        rng = stream(number, "overhead")
        turns = tuple(
            TurnScript(rng.uniform(0, 1), (Voiced(rng.uniform(1.5, 3)),), max_output_tokens=50)
            for _ in range(8)
        )
        yield PersonScript(f"p{number}", 0.0, number, turns, Acks(0.2, 0.05))
        number += 1


async def measured(
    url: str, sessions: int, duration_s: float, turn_detection: Literal["manual", "server_vad"]
) -> dict[str, Any]:
    """Figures of one run."""
    lag = LoopLag()
    busy_s: list[float] = []
    watching = asyncio.gather(lag.run(), note_busy(busy_s))
    pace = Pace(concurrency=sessions, duration_s=duration_s, turn_detection=turn_detection)
    with tempfile.TemporaryDirectory() as directory:
        with LogWriter(Path(directory) / "run.jsonl") as log:
            cpu_s, wall_s = time.process_time(), time.monotonic()
            await run(DrivenServer(url, "fake/echo"), people(), pace, log)
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        events = list(read(log.path))
    sent_s = json.loads(await asyncio.to_thread(get, f"{url}/first_audio"))
    heard_s: dict[str, float] = {}
    for event in events:
        if isinstance(event, AudioDelta):
            heard_s.setdefault(event.response, event.t_s + log.start_s)
    late_ms = [1000 * (heard_s[response] - sent_s[response]) for response in heard_s]
    ended = [event.reason for event in events if isinstance(event, SessionEnded)]
    return {
        "cpu_share": round(cpu_s / wall_s, 4),
        "loop_lag_ms": percentiles([1000 * value for value in lag.take()]),
        "busy_ms_per_20_ms": percentiles([1000 * value for value in busy_s]),
        "first_audio_stamp_late_ms": percentiles(late_ms),
        "replies": sum(isinstance(event, ResponseEnded) for event in events),
        "events": len(events),
        "broken_sessions": sum(reason in ("lost", "failed") for reason in ended),
        "wall_s": round(wall_s, 1),
    }


async def note_busy(busy_s: list[float]) -> None:
    """CPU time of this thread from tick to tick, until cancelled."""
    while True:
        before_s = time.thread_time()
        await asyncio.sleep(TICK_S)
        busy_s.append(time.thread_time() - before_s)


async def idle(duration_s: float) -> dict[str, float]:
    """How late an event loop with nothing else to do runs on this machine now."""
    lag = LoopLag()
    watching = asyncio.create_task(lag.run())
    await asyncio.sleep(duration_s)
    watching.cancel()
    return percentiles([1000 * value for value in lag.take()])


def percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(values, p)), 3) for p in (50, 90, 99, 100)}


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--duration", type=float, default=30.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    Voices.synthetic()
    server = await asyncio.create_subprocess_exec(sys.executable, str(SERVER), stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    url = (await server.stdout.readline()).decode().strip()
    result: dict[str, Any] = {"sessions": arguments.sessions, "idle_loop_lag_ms": await idle(10.0)}
    try:
        result["manual"] = await measured(url, arguments.sessions, arguments.duration, "manual")
        result["server_vad"] = await measured(url, arguments.sessions, arguments.duration, "server_vad")
    finally:
        server.kill()
        await server.wait()
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    asyncio.run(main())
