"""Each module of the deciding half has a file of tests in its own room: by its name, or one that imports it,
or the one below that drives it.
"""

from __future__ import annotations

import ast
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
    "wire/test_session.py": (
        "audio config content conversation items outputs reply response response_params responses"
    ),
    "workload/test_draw.py": "dialogue turns",
    "workload/test_traces.py": "trace_json",
}
"""What a file of tests drives through its room's door."""


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
