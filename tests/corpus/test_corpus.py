"""The corpus of records decides the same again, call by call."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from antiphon.runtime.codec import encode
from antiphon.runtime.record import read_record, replay
from corpus import make

HERE = Path(__file__).parent
RECORDS = sorted(HERE.glob("*.xz"))
PRESETS = {"sim-paced": "paced.yaml", "toy-kept": "turns.yaml"}
"""Of records with policies that do not ship."""


@pytest.fixture(params=RECORDS, ids=[path.stem for path in RECORDS])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param.stem
    path.write_bytes(lzma.decompress(request.param.read_bytes()))
    return path


def test_the_corpus_is_whole() -> None:
    assert len(RECORDS) == 21


def test_every_decision_is_the_recorded_one(record: Path) -> None:
    preset = PRESETS.get(record.stem, "")
    count, differences = replay(record, str(HERE / preset) if preset else "")
    assert count > 50
    assert not differences


def test_one_wakes_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(lzma.decompress((HERE / "sim-paced.xz").read_bytes()))
    _, entries = read_record(path)
    assert sum(entry.decision.wake_at is not None for entry in entries) > 100


def test_requests_that_take_turns_keep_their_kv_apart(tmp_path: Path) -> None:
    """A session's replies overlap; each is preempted, keeps its KV and goes on from it. The toy world checks
    every ledger after every call."""
    path = tmp_path / "record"
    make.corpus(Path())["toy-kept"](path)
    kept = tmp_path / "kept"
    kept.write_bytes(lzma.decompress((HERE / "toy-kept.xz").read_bytes()))
    assert decided(path) == decided(kept)


def decided(record: Path) -> list[tuple[float, bytes]]:
    """When, and what."""
    return [(entry.now, encode(entry.decision)) for entry in read_record(record)[1]]
