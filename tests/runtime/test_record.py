"""Record and replay: the same facts, the same decisions; nobody's voice or picture in the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from antiphon import Omni
from antiphon.cli import app
from antiphon.core.conversation import Item
from antiphon.core.errors import ConfigError
from antiphon.core.plans import Decision
from antiphon.engine.load import Engine
from antiphon.metrics.names import Metric
from antiphon.runtime.driver import Driver
from antiphon.runtime.omni import parts_of
from antiphon.runtime.record import RecordWriter, check_new, ends_early, read_record, replay, unused
from exactness.talk import Talk


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    return Omni(tiny_checkpoint, device="cpu", max_rows=4).engine


@pytest.fixture
def record(engine: Engine, tmp_path: Path) -> Path:
    """Two people, media, a second turn, a cancel, a failed prompt."""
    rng = np.random.default_rng(0)
    noise = {"audio": (0.1 * rng.standard_normal(17_000)).astype(np.float32)}
    picture = {"image": rng.integers(0, 255, (64, 96, 3), dtype=np.uint8)}
    film = {"video": rng.integers(0, 255, (2, 64, 96, 3), dtype=np.uint8), "fps": 1, **noise}
    path = tmp_path / "a.record"
    writer = RecordWriter(path, engine.node, engine.depth)
    talk = Talk(engine, recorder=writer)
    for session, content in (("a", [noise, "hm?"]), ("b", [picture, "what?"]), ("empty", "")):
        talk.open(session, Item("q", "user", parts_of(content)))
        talk.ask(session)
    talk.step(20)
    talk.cancel("b")
    talk.run()
    talk.add("a", Item("q2", "user", parts_of([film, "again"])))
    talk.ask("a", "second")
    talk.run()
    talk.close("a", "b", "empty")
    talk.run()
    writer.close()
    assert [talk.said[name].end.status for name in ("a", "b", "empty")] == [
        "incomplete",
        "cancelled",
        "failed",
    ]
    assert noise["audio"].tobytes()[1000:1016] not in path.read_bytes()
    assert picture["image"].tobytes()[1000:1016] not in path.read_bytes()
    assert film["video"].tobytes()[1000:1016] not in path.read_bytes()
    assert all(len(said) < 16 or said[:16] not in path.read_bytes() for said in talk.said["a"].audio)
    return path


def test_replay_decides_alike(record: Path) -> None:
    count, differences = replay(record)
    assert count > 50
    assert differences == []


def test_a_changed_fact_shows(record: Path, engine: Engine, tmp_path: Path) -> None:
    """Without the cancel, the response is not over where the record says so."""
    header, entries = read_record(record)
    writer = RecordWriter(tmp_path / "b.record", header.node, header.depth)
    for entry in entries:
        facts = [f for f in entry.facts if type(f).__name__ != "ResponseCancelled"]
        writer.write(entry.now, facts, entry.decision)
    writer.close()
    _, differences = replay(tmp_path / "b.record")
    assert differences
    assert "ResponseEnded" in differences[0].recorded


def test_a_record_cut_short_ends_there(record: Path) -> None:
    count, _ = replay(record)
    assert not ends_early(record)
    record.write_bytes(record.read_bytes()[:-7])
    assert replay(record) == (count - 1, [])
    assert ends_early(record)
    said = CliRunner().invoke(app, ["replay", str(record)])
    assert said.exit_code == 0
    assert "ends in the middle of a decision" in said.output


def test_foreign_and_damaged_files_are_named(record: Path, tmp_path: Path) -> None:
    for index, content in enumerate((b"", b"hello", b"\x03\x00\x00\x00abc", b"\xff" * 100)):
        foreign = tmp_path / f"foreign{index}"
        foreign.write_bytes(content)
        with pytest.raises(ConfigError, match=f"foreign{index}"):
            replay(foreign)
    damaged = bytearray(record.read_bytes())
    size = int.from_bytes(damaged[:4], "little")
    damaged[4 + size + 4 : 4 + size + 12] = b"\xc1" * 8
    record.write_bytes(damaged)
    with pytest.raises(ConfigError, match="entry 0 is damaged"):
        replay(record)


def test_another_version_is_named(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.runtime.record.VERSION", 999)
    RecordWriter(tmp_path / "new.record", engine.node, 0).close()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="version 999"):
        read_record(tmp_path / "new.record")


def test_a_record_that_cannot_be_written(engine: Engine, tmp_path: Path) -> None:
    """At the start it is the operator's error; later the record ends and the service goes on."""
    with pytest.raises(ConfigError, match="nowhere"):
        RecordWriter(tmp_path / "nowhere" / "a.record", engine.node, 0)
    with pytest.raises(ConfigError, match="full"):
        RecordWriter(Path("/dev/full"), engine.node, 0)
    writer = RecordWriter(tmp_path / "a.record", engine.node, 0)
    writer._file.close()
    writer._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    assert not writer.has_stopped
    writer.write(0.0, [], Decision((), ()))
    assert writer._file.closed
    assert writer.has_stopped
    writer.write(0.0, [], Decision((), ()))
    writer.close()


def test_a_record_is_never_written_over(record: Path, engine: Engine) -> None:
    before = record.read_bytes()
    for begin in (lambda: check_new(record), lambda: RecordWriter(record, engine.node, 0)):
        with pytest.raises(ConfigError, match=r"is there already.* name another file"):
            begin()
    assert record.read_bytes() == before
    with pytest.raises(ConfigError, match="is not a directory"):
        check_new(record.parent / "nowhere" / "a.record")
    new = record.parent / "new.record"
    check_new(new)
    assert unused(new) == new
    assert unused(record).name == f"{record.name}.2"
    assert unused(Path("/dev/null")) == Path("/dev/null")


def test_the_driver_tells_of_a_record_that_has_stopped(engine: Engine, tmp_path: Path) -> None:
    driver = Driver(engine, lambda outputs: None)
    assert Metric.RECORD_STOPPED not in driver.stats()
    driver.recorder = writer = RecordWriter(tmp_path / "a.record", engine.node, engine.depth)
    assert driver.stats()[Metric.RECORD_STOPPED] == 0
    writer.has_stopped = True
    assert driver.stats()[Metric.RECORD_STOPPED] == 1
    writer.close()


def test_header_says_how_the_node_was_made(record: Path, engine: Engine) -> None:
    header, entries = read_record(record)
    assert msgspec.to_builtins(header.node) == msgspec.to_builtins(engine.node)
    assert header.depth == engine.depth
    times = [entry.now for entry in entries]
    assert times == sorted(times)
