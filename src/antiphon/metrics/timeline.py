"""Generation against playback of one reply, as columns to plot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    before_s = received_s - row.audio_s
    starts_s = np.maximum.accumulate(row.audio_at_s - before_s) + before_s  # a delta waits for the one before
    ends_s = starts_s + row.audio_s
    stopped_s = (
        row.interrupted_at_s if row.barged_in and row.interrupted_at_s is not None else float(ends_s[-1])
    )

    dry_s = ends_s[:-1][ends_s[:-1] < row.audio_at_s[1:]]
    playing_s = np.append(dry_s, ends_s[-1])
    at_s = np.unique(np.concatenate([row.audio_at_s, playing_s[playing_s < stopped_s], [stopped_s]]))
    at_s = at_s[at_s >= row.audio_at_s[0]]
    heard_s = np.interp(
        np.minimum(at_s, stopped_s),
        np.column_stack([starts_s, ends_s]).ravel(),
        np.column_stack([before_s, received_s]).ravel(),
    )
    return Timeline(at_s, received_s[np.searchsorted(row.audio_at_s, at_s, side="right") - 1], heard_s)
