"""The corpus of records decides the same again, call by call."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from antiphon.runtime.record import replay

RECORDS = sorted(Path(__file__).parent.glob("*.xz"))


@pytest.fixture(params=RECORDS, ids=[path.stem for path in RECORDS])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param.stem
    path.write_bytes(lzma.decompress(request.param.read_bytes()))
    return path


def test_the_corpus_is_whole() -> None:
    assert len(RECORDS) == 19


def test_every_decision_is_the_recorded_one(record: Path) -> None:
    count, differences = replay(record)
    assert count > 50
    assert not differences
