"""The real server as a process of its own, for tests that go over the wire."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

READY_S = 180


def greedy(checkpoint: Path, copy: Path) -> Path:
    """A copy of the checkpoint without chance: a sampled reply may be empty, and then it is not spoken."""
    shutil.copytree(checkpoint, copy)
    generation = json.loads((copy / "generation_config.json").read_text())
    generation |= {"do_sample": False, "talker_do_sample": False}
    (copy / "generation_config.json").write_text(json.dumps(generation))
    return copy


@asynccontextmanager
async def serving(checkpoint: Path, record: Path, *options: str) -> AsyncIterator[str]:
    """`antiphon serve` on a free port; yields its http URL. It has to leave by SIGTERM with status 0."""
    command = ["serve", str(checkpoint), "--name", "tiny", "--port", "0", "--threads", "1", *options]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon", *command, "--record", str(record)),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert process.stderr is not None
    found = None
    try:
        async with asyncio.timeout(READY_S):
            while not found:
                line = await process.stderr.readline()
                assert line, "the server left before it was ready"
                found = re.search(rb"ready: open (http://[^/\s]+)", line)
    except BaseException:
        process.kill()
        raise
    drained = asyncio.create_task(process.stderr.read())
    try:
        yield found.group(1).decode()
    except BaseException:
        process.kill()
        raise
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert b"Traceback" not in await drained
