"""Live conversations against a running server: does every listener hear an unbroken voice?

    make serve                                            # in one terminal
    .venv/bin/python benchmarks/conversations.py --sessions 4

Each session speaks a manual-commit audio turn, listens to the answer at one second per second, pauses, and
speaks again. Reported per run: TTFP (end of the user's audio to the first audio delta), the largest playback
gap (how long a listener would have waited for audio that was not there yet), and RTF (time to receive a reply
over its duration).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from openai import AsyncOpenAI

RATE_HZ = 24_000


@dataclass
class Turn:
    """One reply as its listener met it. Seconds."""

    ttfp_s: float
    gap_s: float
    audio_s: float
    took_s: float


def speech(seconds: float, seed: int) -> bytes:
    """Noise shaped like syllables: PCM16 at 24 kHz."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RATE_HZ)) / RATE_HZ
    wave = rng.standard_normal(len(t)) * np.clip(np.sin(2 * np.pi * 4 * t), 0, None) * 4000
    return wave.astype("<i2").tobytes()


async def converse(url: str, model: str, turns: int, seed: int) -> list[Turn]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    rng = np.random.default_rng(seed)
    done: list[Turn] = []
    async with client.realtime.connect(model=model) as connection:
        await asyncio.sleep(rng.uniform(0, 1))
        for turn in range(turns):
            pcm = speech(rng.uniform(1, 3), seed * 100 + turn)
            await connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())
            await connection.input_audio_buffer.commit()
            await connection.response.create()
            done.append(await listen(connection))
            await asyncio.sleep(max(0.0, done[-1].audio_s - done[-1].took_s) + rng.uniform(0.2, 1))
    return done


async def listen(connection) -> Turn:
    """Receive one reply and note when playback would have run dry."""
    asked = time.monotonic()
    first = 0.0
    audio_s, gap_s = 0.0, 0.0
    async for event in connection:
        now = time.monotonic()
        if event.type == "response.output_audio.delta":
            first = first or now
            late_s = now - first - gap_s - audio_s
            gap_s += max(0.0, late_s)
            audio_s += len(base64.b64decode(event.delta)) / 2 / RATE_HZ
        elif event.type == "error":
            raise RuntimeError(event.error.message)
        elif event.type == "response.done":
            if event.response.status != "completed":
                raise RuntimeError(f"response {event.response.status}: {event.response.status_details}")
            return Turn(first - asked, gap_s, audio_s, time.monotonic() - asked)
    raise RuntimeError("the server closed the connection")


def summary(turns: list[Turn], arguments: argparse.Namespace) -> dict:
    def percentiles(values: list[float]) -> dict[str, float]:
        return {f"p{p}": round(float(np.percentile(values, p)), 4) for p in (50, 90, 99)}

    return {
        "sessions": arguments.sessions,
        "turns": len(turns),
        "ttfp_s": percentiles([turn.ttfp_s for turn in turns]),
        "rtf": percentiles([turn.took_s / turn.audio_s for turn in turns]),
        "max_gap_s": round(max(turn.gap_s for turn in turns), 4),
        "audio_s": round(sum(turn.audio_s for turn in turns), 2),
        "command": "python " + " ".join(sys.argv),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}",
    }


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = (
        converse(arguments.url, arguments.model, arguments.turns, seed) for seed in range(arguments.sessions)
    )
    turns = [turn for run in await asyncio.gather(*runs) for turn in run]
    text = json.dumps(summary(turns, arguments), indent=2)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


asyncio.run(main())
