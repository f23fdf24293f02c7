"""What was decided before all decisions had policies is decided still: records of version 1, lifted."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli import app
from antiphon.core.errors import ConfigError
from antiphon.core.plans import ResponseEnded, TokensOut
from antiphon.runtime.codec import encode
from antiphon.runtime.lift import lift
from antiphon.runtime.record import Header, read_record, replay

HERE = Path(__file__).parent
RECORDS = sorted((HERE / "v1").glob("*.xz"))
EXCEPTIONS = {
    "engine-short": (326, "the first prompts beside others are read in small pieces"),
    "engine-short-host": (564, "what a request waits for is fetched, into room made for it, before it joins"),
    "sim-short-host-baseline": (1377, "what the next request begins with is not evicted ahead of need"),
    "sim-short-host-fcfs": (1388, "what the next request begins with is not evicted ahead of need"),
    "toy-short-depth1": (64, "evicted media of the first waiting request are sought before a row is free"),
    "toy-short-host": (50, "what a request waits for is fetched, into room made for it, before it joins"),
    "toy-split": (12, "a row whose KV is on its way from another unit holds up no other row"),
}
"""The first decision that differs, and why. Memory runs short, or replies are written by another unit than
their prompts are read by, or no step's time is known yet; and what comes after it answers steps that were not
ordered."""


def unpacked(packed: Path, folder: Path) -> Path:
    path = folder / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


@pytest.mark.parametrize("packed", RECORDS, ids=[path.stem for path in RECORDS])
def test_decisions_of_a_lifted_record_are_equal(packed: Path, tmp_path: Path) -> None:
    """In every byte: rows, tokens, blocks, copies, outputs. Where all is decided as it was, the lifted record
    is the corpus's, which `test_corpus` replays."""
    new = tmp_path / "new"
    count = lift(unpacked(packed, tmp_path), new)
    if packed.stem not in EXCEPTIONS:
        lifted, kept = contents(new), contents(unpacked(HERE / packed.name, tmp_path))
        assert count == len(lifted[1])
        assert lifted == kept
        return
    replayed, differences = replay(new)
    assert count == replayed
    index, _ = EXCEPTIONS[packed.stem]
    assert "short" in packed.stem or "split" in packed.stem
    assert differences[0].index == index, "and none before it"
    if "host" in packed.stem:
        assert "CopyBlocks" in differences[0].recorded + differences[0].replayed


def contents(record: Path) -> tuple[Header, list[tuple[float, bytes, bytes]]]:
    """The configuration, and of every call the time, the facts and what was decided."""
    header, entries = read_record(record)
    return header, [(one.now, encode(one.facts), encode(one.decision)) for one in entries]


def test_all_are_there() -> None:
    assert len(RECORDS) == 19


@pytest.mark.parametrize("name", [name for name in EXCEPTIONS if not name.startswith("engine")])
def test_what_is_decided_otherwise_says_the_same(name: str, tmp_path: Path) -> None:
    """The same people, with the decisions of then and of now: every token of every reply, and how it ends."""
    lift(unpacked(HERE / "v1" / f"{name}.xz", tmp_path), tmp_path / "old")
    (tmp_path / "new").write_bytes(lzma.decompress((HERE / f"{name}.xz").read_bytes()))
    assert said(tmp_path / "old") == said(tmp_path / "new")


def said(record: Path) -> dict[tuple[str, ...], list[object]]:
    """Tokens by session, response and stage; how each response ended, by session and response."""
    found: dict[tuple[str, ...], list[object]] = {}
    for entry in read_record(record)[1]:
        for output in entry.decision.outputs:
            if isinstance(output, TokensOut):
                tokens = output.tokens.tolist()
                found.setdefault((output.session, output.response, output.stage), []).extend(tokens)
            if isinstance(output, ResponseEnded):
                found[output.session, output.response] = [output.status, output.reason]
    return found


def test_a_record_of_version_1_is_refused_with_the_way_out(tmp_path: Path) -> None:
    old, new = unpacked(HERE / "v1" / "toy-lost.xz", tmp_path), tmp_path / "new"
    with pytest.raises(ConfigError, match=r"has record version 1; .*`antiphon lift .*toy-lost NEW`"):
        replay(old)
    result = CliRunner().invoke(app, ["lift", str(old), str(new)])
    assert (result.exit_code, result.output) == (0, "129 decisions\n")
    assert replay(new) == (129, [])
    for message, source, target in (
        ("exists already", old, new),
        ("the record has version 2", new, tmp_path / "other"),
    ):
        with pytest.raises(ConfigError, match=message):
            lift(source, target)


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"\x03\x00\x00\x00abc", b"no record at all, but a text"])
def test_what_is_no_record_is_refused_and_nothing_is_left(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(data)
    with pytest.raises(ConfigError, match="not a record of version 1, or it is damaged"):
        lift(tmp_path / "old", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    result = CliRunner().invoke(app, ["lift", str(tmp_path / "old"), str(tmp_path / "new")])
    assert result.exit_code == 1


def test_a_damaged_entry_leaves_nothing_behind(tmp_path: Path) -> None:
    old = unpacked(HERE / "v1" / "toy-split.xz", tmp_path)
    old.write_bytes(old.read_bytes() + b"\x03\x00\x00\x00abc")
    with pytest.raises(ConfigError, match="not a record of version 1, or it is damaged"):
        lift(old, tmp_path / "new")
    assert not (tmp_path / "new").exists()
