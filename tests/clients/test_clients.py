"""Stock clients, unchanged, at the real server: each by its own interpreter, from ANTIPHON_CLIENTS.

`make clients` sets that folder up: one virtual environment a client, and one folder of npm packages.
"""

from __future__ import annotations

import asyncio
import os
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from clients.rehearsed import rehearsed
from fakes.serving import serving
from voice import RATE_HZ, pcm16, silence, voice

HERE = Path(__file__).parent
CLIENTS = Path(os.environ.get("ANTIPHON_CLIENTS", HERE.parents[1] / ".clients"))
JS = CLIENTS / "js"
LIMIT_S = 240
SHOWN_CHARS = 3000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rehearsed(tmp_path_factory.mktemp("rehearsed") / "checkpoint")


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the person says: a breath of silence, then a second of voice."""
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(pcm16(np.concatenate([silence(0.2), voice(1.2)])))
    return path


@pytest.mark.parametrize("client", ["openai", "agents", "pydantic", "pipecat", "livekit"])
async def test_python_client(client: str, checkpoint: Path, speech: Path, tmp_path: Path) -> None:
    python = Path(sys.executable) if client == "openai" else CLIENTS / client / "bin" / "python"
    await talk([_there(python), str(HERE / f"talk_{client}.py")], checkpoint, speech, tmp_path)


async def test_javascript_client(checkpoint: Path, speech: Path, tmp_path: Path) -> None:
    _there(JS / "node_modules" / "@openai" / "agents-realtime" / "package.json")
    await talk(["node", str(HERE / "talk_agents.mjs")], checkpoint, speech, tmp_path)


def _there(path: Path) -> str:
    if not path.exists():
        pytest.skip(f"{path} is not there: run `make clients`, or point ANTIPHON_CLIENTS at its folder")
    return str(path)


async def talk(command: list[str], checkpoint: Path, speech: Path, tmp_path: Path) -> None:
    """Run a client's script against a server of its own."""
    async with serving(checkpoint, tmp_path / "run.record") as url:
        process = await asyncio.create_subprocess_exec(
            *(*command, url, "tiny", str(speech)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(),
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 0, said.decode(errors="replace")[-SHOWN_CHARS:]


def _environment() -> dict[str, str]:
    """The client's own: neither our packages nor a key that would lead it elsewhere."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in ours and "OPENAI" not in name}
    return {**kept, "ANTIPHON_CLIENT": str(JS)}
