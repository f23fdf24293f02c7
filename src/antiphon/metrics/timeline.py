"""Generation against playback of one reply, as columns to plot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon.core.playback import Playback
from antiphon.metrics.rows import ResponseRow


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Columns of equal length, ascending in time.

    at_s        float64, seconds since the run's start
    received_s  float64, audio received by then: a step at each delta
    heard_s     float64, audio heard by then: straight lines between the points
    """

    at_s: NDArray[np.float64]
    received_s: NDArray[np.float64]
    heard_s: NDArray[np.float64]


def timeline(row: ResponseRow) -> Timeline:
    """The timeline of a reply, from its first audio until it is played through or stopped; audio that came
    after a barge-in follows it. Empty for a reply without audio.

    Points lie at every delta, where playback ran dry, and where it ended. The heard column plays the deltas
    at one second per second; a client's own count at the barge-in (`row.heard_s`) may differ a little.
    """
    if not row.audio_at_s.size:
        return Timeline(np.empty(0), np.empty(0), np.empty(0))
    received_s = np.cumsum(row.audio_s)
    dry_s, end_s = _played_alone(row)
    stopped_s = row.interrupted_at_s if row.barged_in and row.interrupted_at_s is not None else end_s
    playing_s = [at_s for at_s in (*dry_s, end_s) if at_s < stopped_s]
    at_s = np.unique(np.concatenate([row.audio_at_s, np.array([*playing_s, stopped_s], np.float64)]))
    at_s = at_s[at_s >= row.audio_at_s[0]]
    heard_s = np.array(_heard_at(row, at_s.tolist(), stopped_s))
    return Timeline(at_s, received_s[np.searchsorted(row.audio_at_s, at_s, side="right") - 1], heard_s)


def _played_alone(row: ResponseRow) -> tuple[list[float], float]:
    """When playback would run dry in mid-reply, and when it would end, if nobody stopped it."""
    playback, dry_s = Playback(), list[float]()
    for at_s, audio_s in zip(row.audio_at_s.tolist(), row.audio_s.tolist(), strict=True):
        before_s = playback.dry_at
        if playback.add(audio_s, at_s):
            dry_s.append(before_s)
    return dry_s, playback.dry_at


def _heard_at(row: ResponseRow, at_s: list[float], stopped_s: float) -> list[float]:
    """Seconds heard at each of these times, which ascend."""
    playback, heard_s, num_come = Playback(), list[float](), 0
    for point_s in at_s:
        while num_come < row.audio_at_s.size and row.audio_at_s[num_come] <= point_s:
            playback.add(row.audio_s.item(num_come), row.audio_at_s.item(num_come))
            num_come += 1
        if point_s >= stopped_s:
            playback.stop(stopped_s)
        heard_s.append(playback.played_s(point_s))
    return heard_s
