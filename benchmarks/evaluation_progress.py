"""How far each stage, and the listener, are with a reply: read off what a node is told and decides."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from antiphon.core.facts import Fact, ResponseRequested, StepDone
from antiphon.core.plans import Decision
from antiphon.core.playback import Playback
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ

DECODERS, VOCODER = ("thinker", "talker"), "code2wav"
POINTS = 80


class Progress:
    """Implements `Recorder`. One reply at a time: a step is the last asked one's."""

    def __init__(self) -> None:
        self.replies: list[dict[str, list[tuple[float, float]]]] = []
        """By stage, (seconds since the turn's end, tokens, frames or seconds of audio that are new)."""
        self._asked_s = 0.0

    def write(self, now: float, facts: list[Fact] | tuple[Fact, ...], decision: Decision) -> None:
        for fact in facts:
            if isinstance(fact, ResponseRequested):
                self._asked_s = now
                self.replies.append(defaultdict(list))
            elif isinstance(fact, StepDone) and self.replies:
                if fact.stage == VOCODER:
                    self._add(VOCODER, now, int(fact.samples.sum()) / WIRE_SAMPLE_RATE_HZ)
                elif fact.stage in DECODERS:
                    self._add(fact.stage, now, len(fact.tokens))

    def _add(self, stage: str, now: float, amount: float) -> None:
        if amount:
            self.replies[-1][stage].append((now - self._asked_s, amount))


def curves(progress: Progress, most: int | None = None) -> list[dict[str, Any]]:
    """Of the first spoken replies: when each stage had done which share of it, and when it was heard."""
    return [curve(reply) for reply in progress.replies[:most] if reply[VOCODER]]


def curve(reply: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    playback = Playback()
    for at_s, audio_s in reply[VOCODER]:
        playback.add(audio_s, at_s)
    grid = np.geomspace(playback.dry_at / 1000, playback.dry_at, POINTS)
    found: dict[str, Any] = {"at_s": grid.round(4).tolist(), "audio_s": round(playback.audio_s, 3)}
    for stage in (*DECODERS, VOCODER):
        times, amounts = (np.array(column) for column in zip(*reply[stage], strict=True))
        done = np.concatenate([[0.0], np.cumsum(amounts)]) / amounts.sum()
        found[stage] = done[np.searchsorted(times, grid, side="right")].round(4).tolist()
        found[f"{stage}_done_s"] = round(float(times[-1]), 4)
    heard = [playback.played_s(float(at_s)) / playback.audio_s for at_s in grid]
    found["playback"] = np.round(heard, 4).tolist()
    return found
