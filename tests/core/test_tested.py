"""Each module of the deciding half has a file of tests in its own room: by its name, or one that imports it,
or the one below that drives it. No new test sleeps.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import antiphon
from core.test_purity import ROOMS, imported

HOUSE, TESTS = Path(antiphon.__file__).parent, Path(__file__).parents[1]
PLAIN = "core/model_info core/ports core/snapshot core/turns flow/outbox sim/costs"
"""Types, protocols and holders: nothing of them can go wrong alone."""
DRIVEN = {
    "assembly/test_resolve.py": "sizing",
    "flow/test_admission.py": "preparation",
    "flow/test_turns.py": "orchestrator sessions",
    "kv/test_evict.py": "resting",
    "kv/test_sequences.py": "block_names stage_blocks",
    "sim/test_people.py": "client",
    "stage/test_host_writes.py": "tending",
    "stage/test_room.py": "tiers",
    "wire/test_chat_reading.py": "sampling_overrides",
    "wire/test_push_to_talk.py": "pushes",
    "wire/test_session.py": (
        "audio config content conversation items outputs reply response response_params responses"
    ),
    "workload/test_draw.py": "dialogue turns",
    "workload/test_traces.py": "trace_json",
}
"""What a file of tests drives through its room's door."""
SLEEP = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))")
SLEEPS = {
    "bench": 7,
    "clients": 3,
    "corpus": 1,
    "engine": 3,
    "exactness": 2,
    "fakes": 2,
    "runtime": 15,
    "server": 17,
    "test_cli.py": 2,
    "test_real_storms.py": 4,
    "test_stage_lost.py": 2,
}
"""Where tests wait in real time: most look again and again at what another process does."""


def test_each_module_has_its_tests() -> None:
    named = {f"{Path(file).parts[0]}/{name}" for file, names in DRIVEN.items() for name in names.split()}
    assert all((TESTS / file).is_file() for file in DRIVEN)
    left: list[str] = []
    for room in (room for room in ROOMS if room != "graphs"):  # data: `all_graphs` finds them for test_graphs
        files = [*(TESTS / room).glob("*.py")]
        seen = set[str]().union(*(imported(file) for file in files))
        seen |= {f"antiphon.{room}.{file.stem.removeprefix('test_')}" for file in files}
        modules = sorted(path.stem for path in (HOUSE / room).glob("*.py") if path.stem != "__init__")
        left += [f"{room}/{name}" for name in modules if f"antiphon.{room}.{name}" not in seen]
    known = named | {*PLAIN.split()}
    assert not {*left} - known, "these have no tests in their own room"
    assert known <= {*left}, "these have tests that name them: take them out of the list"


def test_plain_modules_decide_nothing() -> None:
    """But what they hold: a branch there would want a test."""
    for module in PLAIN.split():
        tree = ast.parse((HOUSE / f"{module}.py").read_text())
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.For | ast.While)], module


def test_no_new_test_sleeps() -> None:
    """A fake clock jumps, and an event is waited for."""
    found = Counter[str]()
    for file in TESTS.rglob("*.py"):
        found[file.relative_to(TESTS).parts[0]] += len(SLEEP.findall(file.read_text()))
    assert not found - Counter(SLEEPS)
