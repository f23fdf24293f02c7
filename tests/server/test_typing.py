"""When the console takes typing as a sign that a turn is coming."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from antiphon.server.app import CONSOLE

NODE = shutil.which("node")
SCRIPT = """
const { Typing } = await import("data:text/javascript;base64," + btoa(CODE));
const told = [];
let now = 0;
const typing = new Typing(() => told.push(now));
for (const key of KEYS) typing.typed((now = key));
console.log(JSON.stringify(told));
"""


def told(*keys: int) -> list[int]:
    """Times in ms at which advisories leave."""
    code = json.dumps((CONSOLE / "typing.js").read_text())
    script = SCRIPT.replace("CODE", code).replace("KEYS", json.dumps(keys))
    assert NODE is not None
    command = [NODE, "--input-type=module", "--eval", script]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)


@pytest.mark.skipif(NODE is None, reason="no node on PATH")
def test_the_first_key_at_once_and_again_while_typing_goes_on_and_none_within_two_seconds() -> None:
    assert told(*range(0, 10_000, 200)) == [0, 2000, 4000, 6000, 8000], "typing without a pause"
    assert told(0, 200, 3000, 3200, 6000) == [0, 3000, 6000]
    assert told(0, 1500, 1700, 1900, 2100, 2300) == [0, 2100]
