"""Logs as files: what was written is read, and what is no log is named by its line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from antiphon.bench.logfile import LogWriter, read
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import AudioDelta, Event, RunEnded

FIRST = AudioDelta(t_s=0.5, session="ann", response="r", audio_s=0.08)


def written(path: Path) -> Path:
    with LogWriter(path) as log:
        log.write(FIRST)
        log.write(RunEnded(t_s=1.0, reason="finished"))
    return path


def test_there_and_back(tmp_path: Path) -> None:
    seen: list[Event] = []
    with LogWriter(tmp_path / "run.jsonl", watch=seen.append) as log:
        log.write(FIRST)
        log.flush()
        assert list(read(tmp_path / "run.jsonl")) == [FIRST] == seen


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    with pytest.raises(ConfigError, match="--force"):
        LogWriter(path)
    LogWriter(path, force=True).__exit__(None, None, None)
    assert path.read_bytes() == b""
    with pytest.raises(ConfigError, match="cannot write"):
        LogWriter(tmp_path / "none" / "run.jsonl")


def test_a_torn_last_line_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING):
        assert list(read(path)) == [FIRST]
    assert "run.jsonl:2" in caplog.text


def test_what_is_no_log(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl")
    path.write_bytes(b'{"event": "Nonsense", "t_s": 1}\n' + path.read_bytes())
    with pytest.raises(ConfigError, match=r"run.jsonl:1: not an event"):
        list(read(path))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read(tmp_path / "absent"))


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="a device of Linux")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    full = pytest.raises(ConfigError, match=r"cannot write the log /dev/full: No space left on device")
    with full, LogWriter(FULL, force=True) as log:
        log.write(FIRST)
    with full, LogWriter(FULL, force=True) as log:
        log.write(FIRST)
        log.flush()
    with full, LogWriter(FULL, force=True) as log:
        for _ in range(100_000):
            log.write(FIRST)
