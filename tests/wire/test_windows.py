"""Long recordings in pieces that a transcriber hears one at a time."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from antiphon.core.conversation import AudioPart, TranscriptOptions
from antiphon.wire.windows import FIRST_CUT, LAST_CUT, pieces_of
from wire.harness import INFO

RATE = 16_000
HEARS = msgspec.structs.replace(INFO, max_recording_s=4.0)


def spoken(length_s: float, *pauses_s: float) -> AudioPart:
    """Noise, with pauses of 0.4 s that begin at these times."""
    samples = np.random.default_rng(1).normal(0, 0.2, round(RATE * length_s))
    for pause_s in pauses_s:
        samples[round(RATE * pause_s) : round(RATE * (pause_s + 0.4))] *= 0.01
    return AudioPart.of(samples.astype("<f4").tobytes())


@pytest.mark.parametrize("length_s", [0.5, 4.0])
def test_what_is_heard_at_once_is_left_as_it_is(length_s: float) -> None:
    part = spoken(length_s)
    assert pieces_of(part, HEARS) == (part,)
    assert pieces_of(spoken(9.0), INFO) == (spoken(9.0),), "a model that hears any length"


def test_a_long_recording_is_cut_in_its_pauses() -> None:
    part = spoken(9.0, 1.0, 3.1, 6.2)
    pieces = pieces_of(part, HEARS)
    ends_s = np.cumsum([piece.num_samples for piece in pieces]) / RATE
    assert len(pieces) == 3
    assert 3.1 < ends_s[0] < 3.5
    assert 6.2 < ends_s[1] < 6.6
    assert b"".join(piece.samples for piece in pieces) == part.samples
    assert [AudioPart.of(piece.samples) for piece in pieces] == [*pieces], "each by its own key"


def test_every_piece_keeps_how_the_recording_is_written_down() -> None:
    german = TranscriptOptions(language="de")
    part = msgspec.structs.replace(spoken(9.0), options=german)
    assert {piece.options for piece in pieces_of(part, HEARS)} == {german}


@pytest.mark.parametrize("length_s", [4.01, 5.0, 9.7, 30.0])
@pytest.mark.parametrize("is_silent", [False, True])
def test_no_piece_is_too_long_and_all_but_the_last_are_well_filled(length_s: float, is_silent: bool) -> None:
    part = AudioPart.of(bytes(4 * round(RATE * length_s))) if is_silent else spoken(length_s)
    *whole, last = pieces_of(part, HEARS)
    for piece in whole:
        assert FIRST_CUT * 4.0 * RATE - 1 <= piece.num_samples <= LAST_CUT * 4.0 * RATE
    assert (1 - LAST_CUT) * 4.0 * RATE <= last.num_samples <= 4.0 * RATE


def test_pieces_of_a_turn_that_goes_on_stay_as_they_are() -> None:
    """So that they are written down once."""
    long = spoken(16.0, 3.0, 7.1)
    for length_s in (4.2, 7.9, 12.0):
        *whole, _ = pieces_of(AudioPart.of(long.samples[: 4 * round(RATE * length_s)]), HEARS)
        assert [*pieces_of(long, HEARS)[: len(whole)]] == whole
