"""A record decides the same again; a changed one does not; a foreign one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
import pytest

from antiphon.core.conversation import Item, TextPart
from antiphon.core.errors import ConfigError
from antiphon.core.facts import ItemAdded, ResponseCancelled, ResponseRequested, SessionClosed, SessionOpened
from antiphon.runtime.codec import encode
from antiphon.runtime.record import RecordWriter, read_record, replay
from fakes import toy
from fakes.world import World, toy_config


@pytest.fixture(params=[0, 1])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "record"
    config = toy_config()
    writer = RecordWriter(path, config, request.param)
    world = World(config, request.param, writer)
    for number in range(4):
        session = f"s{number}"
        question = Item("u", "user", (TextPart("tell me more"), toy.tone(number % 2)))
        world.send(SessionOpened(session), ItemAdded(session, question))
        world.send(ResponseRequested(session, f"r{number}", "reply"))
    for _ in range(25):
        world.turn()
    world.send(ResponseCancelled("s0", "r0"), SessionClosed("s1"))
    world.device.failing.add("talker")
    world.run()
    writer.close()
    return path


def test_a_replay_gives_no_differences(record: Path) -> None:
    count, differences = replay(record)
    assert count > 20
    assert not differences


def test_media_are_left_out(record: Path) -> None:
    assert toy.tone(1).samples not in record.read_bytes()


def test_a_tampered_decision_is_found_and_told(record: Path) -> None:
    header, entries = read_record(record)
    changed = list(entries)
    decision = changed[7].decision
    assert decision.orders
    changed[7] = msgspec.structs.replace(changed[7], decision=msgspec.structs.replace(decision, orders=()))
    with record.open("wb") as file:
        for message in (header, *changed):
            data = encode(message)
            file.write(struct.pack("<I", len(data)) + data)
    count, differences = replay(record)
    assert count == len(changed)
    assert [difference.index for difference in differences] == [7]
    assert differences[0].recorded != differences[0].replayed


def test_a_record_cut_short_ends_before_the_cut(record: Path) -> None:
    whole, _ = replay(record)
    record.write_bytes(record.read_bytes()[:-5])
    count, differences = replay(record)
    assert count == whole - 1
    assert not differences


@pytest.mark.parametrize("content", [b"", b"RIFF\x00\x00", b"\x04\x00\x00\x00nope", b"\x01\x00\x00\x00\xc1"])
def test_a_foreign_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a record file"):
        replay(path)
