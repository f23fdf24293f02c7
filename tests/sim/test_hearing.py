"""What an open microphone lets the simulated server hear: turns in whole frames of voice and of silence."""

from __future__ import annotations

from antiphon.core.turns import TurnStarted, TurnStopped
from antiphon.sim.hearing import SILENCE, VOICE, FrameDetector
from antiphon.wire.turn_detection import TurnDetection


def test_other_settings_count_from_there_on() -> None:
    detector = FrameDetector(TurnDetection())
    assert detector.end() == []
    detector.configure(TurnDetection(silence_duration_ms=64))
    events = [event for frame in [VOICE] * 20 + [SILENCE] * 3 for event in detector.feed(frame, False)]
    assert [type(event) for event in events] == [TurnStarted, TurnStopped]
