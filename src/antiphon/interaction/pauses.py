"""When a pause is the end of a turn: by its length alone, or by what the voice did before it.

A heuristic over what a stream of speech probabilities shows; nothing here understands words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Eagerness = Literal["low", "medium", "high", "auto"]

LONGEST_WAIT_MS: dict[Eagerness, int] = {"low": 8000, "medium": 4000, "high": 2000, "auto": 4000}
"""How long semantic detection waits at most (OpenAI's reference of semantic_vad)."""
SHORTEST_WAIT_MS = 250
"""About the longest gap inside a fluent sentence: no pause below it ends a turn."""
MIN_KNOWN_PAUSES = 2
WHOLE_SENTENCE_MS = 1500
LONG_FALL_FRAMES = 5
FALL_PART = 0.9
"""A frame below this part of the turn's usual probability belongs to the voice's fall."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A silence inside or after a turn, as far as it has lasted.

    silence_ms      how long it is by now
    speech_ms       from the turn's first voiced frame to the pause
    known_ms        lengths of this person's earlier pauses that did not end a turn
    fall_frames     frames over which the voice faded into this silence; 0: it stopped short
    """

    silence_ms: float
    speech_ms: float
    known_ms: tuple[float, ...] = ()
    fall_frames: int = 0


class EndOfTurn(Protocol):
    """Decides whether a pause ends the turn."""

    def ends(self, pause: Pause) -> bool: ...


@dataclass(frozen=True, slots=True)
class Silence:
    """Ends a turn after a fixed silence: the baseline, and what other rules fall back to."""

    silence_ms: float = 500.0

    def ends(self, pause: Pause) -> bool:
        return pause.silence_ms >= self.silence_ms


class Semantic:
    """Waits long where the turn seems unfinished, and briefly where it seems complete.

    Where nothing tells (a person without known pauses) the silence rule decides.
    """

    def __init__(self, eagerness: Eagerness = "auto", silence_ms: float = 500.0) -> None:
        self._longest_ms = LONGEST_WAIT_MS[eagerness]
        self._fallback = Silence(silence_ms)

    def ends(self, pause: Pause) -> bool:
        score = completeness(pause)
        if score is None:
            return self._fallback.ends(pause)
        return pause.silence_ms >= self.wait_ms(score)

    def wait_ms(self, score: float) -> float:
        """From the longest wait at score 0 down to the shortest at 1."""
        return self._longest_ms - (self._longest_ms - SHORTEST_WAIT_MS) * score


def completeness(pause: Pause) -> float | None:
    """How complete a turn seems by its sound alone, in [0, 1]; None without pauses to compare with.

    The mean of three signs, of which the first counts twice: the silence is longer than this person's own
    inner pauses (1 at three times their mean), the voice faded out and did not stop short, and what was said
    is as long as a sentence.
    """
    if len(pause.known_ms) < MIN_KNOWN_PAUSES:
        return None
    usual_ms = sum(pause.known_ms) / len(pause.known_ms)
    longer = min(max((pause.silence_ms / usual_ms - 1.0) / 2.0, 0.0), 1.0)
    faded = min(pause.fall_frames / LONG_FALL_FRAMES, 1.0)
    spoken = min(pause.speech_ms / WHOLE_SENTENCE_MS, 1.0)
    return (2.0 * longer + faded + spoken) / 4.0
