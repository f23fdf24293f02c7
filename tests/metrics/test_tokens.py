"""When tokens came: usage spread over characters, by hand."""

from __future__ import annotations

import pytest

from antiphon.metrics.tokens import audio_tokens_within, num_text_tokens, text_tokens_within, token_times
from fakes.logs import reply, rows


def test_tokens_of_the_usage_are_spread_over_the_characters() -> None:
    # 12 characters, 4 tokens: they end at characters 3, 6, 9, 12
    (row,) = rows(reply(text=[(1.0, 3), (2.0, 1), (3.0, 7), (4.0, 1)], end_s=5.0, output_text_tokens=4))
    assert token_times(row).tolist() == [1.0, 3.0, 3.0, 4.0]
    assert text_tokens_within(row, (1.0, 3.0)) == 3
    assert num_text_tokens(row) == 4


def test_without_usage_or_characters_a_delta_is_a_token() -> None:
    (row,) = rows(reply(text=[(1.0, 3), (2.0, 9)], end_s=5.0))
    assert token_times(row).tolist() == [1.0, 2.0]
    (blank,) = rows(reply(text=[(1.0, 0), (2.0, 0)], end_s=5.0, output_text_tokens=7))
    assert token_times(blank).tolist() == [1.0, 2.0]


def test_tokens_without_deltas_come_with_the_end() -> None:
    (row,) = rows(reply(end_s=5.0, output_text_tokens=2))
    assert token_times(row).tolist() == [5.0, 5.0]
    (open_row,) = rows(reply())
    assert token_times(open_row).tolist() == []


def test_frames_are_spread_over_the_audio() -> None:
    # 2 s of audio, half of a second of it inside the window; 40 frames
    (row,) = rows(reply(audio=[(1.0, 0.5), (2.0, 1.5)], end_s=3.0, output_audio_tokens=40))
    assert audio_tokens_within(row, (0.0, 1.0)) == pytest.approx(10)
    assert audio_tokens_within(row, (0.0, 2.0)) == 40
    (unsent,) = rows(reply(end_s=3.0, output_audio_tokens=40))
    assert audio_tokens_within(unsent, (2.0, 3.0)) == 40
    assert audio_tokens_within(unsent, (0.0, 2.0)) == 0
    (open_row,) = rows(reply())
    assert audio_tokens_within(open_row, (0.0, 9.0)) == 0
