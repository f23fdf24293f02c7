"""`antiphon explain` on records of the corpus, and its errors."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon.cli import app

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def short(tmp_path: Path) -> str:
    return unpacked("sim-short-host-fcfs", tmp_path)


def unpacked(name: str, folder: Path) -> str:
    path = folder / name
    path.write_bytes(lzma.decompress((CORPUS / f"{name}.xz").read_bytes()))
    return str(path)


def explained(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["explain", *words])
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


def test_without_a_session_all_are_listed(short: str) -> None:
    said = explained(short)
    assert "session turns TTFP s TTFT s waited s held s preempted evicted fetched cut unheard s" in said
    assert "talker-4 1 0.473 – " in said
    assert "talker-7" in said
    assert "ends in the middle" not in said


def test_of_replies_in_text_the_first_text_is_told(tmp_path: Path) -> None:
    said = explained(unpacked("sim-best-effort-baseline", tmp_path))
    assert "survey-1 7 – 0.023 " in said


def test_a_story_says_what_was_waited_for_and_why(short: str) -> None:
    said = explained(short, "--session", "talker-6")
    for words in (
        "7.527 talker-6/resp-7 the turn is complete: a reply is asked for",
        "first audio, 1.035 s after the turn was complete",
        "8.935 talker-6/resp-7 talker preempted, its KV given up (first come first served)",
        "talker KV blocks fetched from the host on demand: 2 (a request waits for it)",
        "waited 0.776 s for KV blocks (first come first served)",
        "ended: 93 tokens of text, 1.036 s of audio (cancelled: client_cancelled)",
    ):
        assert words in said


def test_a_response_alone(short: str) -> None:
    said = explained(short, "--session", "talker-3", "--response", "talker-3/resp-7")
    assert "talker-3/resp-3" not in said
    assert "is still being made where the record ends" in said


def test_what_there_is_not_is_said_with_what_is_near(short: str, tmp_path: Path) -> None:
    said = explained(short, "--session", "talker-44", status=1)
    assert "no session 'talker-44'; did you mean talker-4? There are talker-0," in said
    said = explained(short, "--session", "talker-4", "--response", "resp-3", status=1)
    assert "session talker-4 has no response 'resp-3'" in said
    assert "name its --session" in explained(short, "--response", "r", status=1)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    assert "not a record file" in explained(str(foreign), status=1)
    said = explained(str(tmp_path / "none"), status=1)
    assert "none cannot be read (No such file or directory); name a file that" in said


def test_policies_that_do_not_ship_are_named(tmp_path: Path) -> None:
    paced = unpacked("sim-paced", tmp_path)
    assert "say --preset FILE" in explained(paced, status=1)
    said = explained(paced, "--preset", str(CORPUS / "paced.yaml"), "--session", "talker-1")
    assert "held back for the first time (far ahead)" in said


def test_a_story_that_is_not_the_runs_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch, short: str) -> None:
    monkeypatch.setattr("antiphon.policy.fcfs.last_come", lambda view: view.request[:0])
    assert "decisions differ from the record" in explained(short)


def test_a_record_that_ends_too_early_is_said_to(tmp_path: Path) -> None:
    record = Path(unpacked("sim-idle-baseline", tmp_path))
    whole = record.read_bytes()
    record.write_bytes(whole[: len(whole) // 2])
    assert "the record ends in the middle of a decision" in explained(str(record))


def test_what_is_held_on_purpose_is_not_waited_for(tmp_path: Path) -> None:
    """Replies that are kept from running ahead lack nothing."""
    rows = explained(unpacked("sim-paced", tmp_path), "--preset", str(CORPUS / "paced.yaml"))
    waited_s, held_s = map(float, rows.partition("talker-1 ")[2].split()[3:5])
    assert held_s > 1 > waited_s
