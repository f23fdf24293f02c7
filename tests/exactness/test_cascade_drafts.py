"""What a transcript is expected to be saves steps of its decoder, and changes no token of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Omni
from antiphon.core.conversation import AudioPart, TranscriptOptions
from antiphon.flow.transcripts import Transcripts
from exactness.cascade import SPOKEN, Oracle, Orders, ask, check_all_free, said, taken
from exactness.talk import Talk

GUESSES: dict[str, tuple[Callable[[tuple[int, ...]], tuple[int, ...]], int]] = {
    "nothing": (lambda truth: (), 0),
    "wrong": (lambda truth: (truth[0] + 1, *truth[1:]), 0),
    "right at first": (lambda truth: (*truth[:3], truth[3] + 1, *truth[4:]), 3),
    "shorter": (lambda truth: truth[:5], 5),
    "whole": (lambda truth: truth, 20),
    "longer": (lambda truth: (*truth, 3, 4, 5), 20),
}
"""What a transcript is expected to be, and how many of its 22 steps that saves: a block holds 14 tokens
behind the prompt."""


def expect(monkeypatch: pytest.MonkeyPatch, draft_of: Callable[[str], tuple[int, ...]]) -> None:
    """What a session's transcript is expected to be, whatever was written before."""

    def hear(self: Transcripts, running: Any, *_: object) -> None:
        running.draft = draft_of(running.session)

    monkeypatch.setattr(Transcripts, "_hear", hear)


def transcripts_expected(
    omni: Omni, sessions: dict[str, tuple[AudioPart, tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[int, tuple[int, ...]], int]:
    """The transcripts of these sessions' recordings, asked at once, each expected to be as given; and how
    many steps of the decoder they took."""
    expect(monkeypatch, lambda session: sessions[session][1])
    executor: Any = omni.engine.executors["transcriber"]
    model, steps = executor.runner._model, []
    forward = model.forward
    orders = Orders()
    talk = Talk(omni.engine, orders)
    for name, (part, _) in sessions.items():
        talk.open(name, said(part))
        ask(talk, name)
    with monkeypatch.context() as patched:
        patched.setattr(model, "forward", lambda step: steps.append(step) or forward(step))
        talk.run()
    talk.close(*sessions)
    talk.run()
    check_all_free(talk)
    return orders.transcripts, len(steps)


@pytest.mark.parametrize("guess", GUESSES)
def test_what_is_expected_saves_steps_and_changes_no_token(
    omni: Omni, oracle: Oracle, guess: str, monkeypatch: pytest.MonkeyPatch
):
    make, saved = GUESSES[guess]
    for name, part in (("a", SPOKEN[0]), ("b", SPOKEN[3])):
        truth = oracle.transcript(part)
        assert len(truth) == 22
        found, num_steps = transcripts_expected(omni, {name: (part, make(truth))}, monkeypatch)
        assert list(found.values()) == [truth]
        assert num_steps == 22 - saved


@pytest.mark.parametrize(
    "guesses", [("whole", "wrong"), ("shorter", "right at first"), ("nothing", "longer")]
)
def test_rows_with_and_without_a_draft_share_steps(
    omni: Omni, oracle: Oracle, guesses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    parts = SPOKEN[0], SPOKEN[3]
    truths = [oracle.transcript(part) for part in parts]
    drafts = [GUESSES[guess][0](truth) for guess, truth in zip(guesses, truths, strict=True)]
    sessions = dict(zip("ab", zip(parts, drafts, strict=True), strict=True))
    found, _ = transcripts_expected(omni, sessions, monkeypatch)
    assert sorted(found.values()) == sorted(truths)


def test_a_transcript_that_is_not_the_likeliest_has_no_draft_computed(
    omni: Omni, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
):
    """What is drawn by chance would be drawn by chance behind the draft as well."""
    said_again = {}
    for draft in ((), oracle.transcript(SPOKEN[0])):
        expect(monkeypatch, lambda session, draft=draft: draft)
        orders = Orders()
        talk = Talk(omni.engine, orders)
        talk.open("s", said(taken(SPOKEN[0], TranscriptOptions(temperature=1.0, seed=5))))
        ask(talk, "s")
        talk.run()
        said_again[draft] = list(orders.transcripts.values())
    assert len({str(one) for one in said_again.values()}) == 1
