"""A client's end of one conversation: what the generators of one person, or of one job, share, and how it
begins in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.metrics.log import SessionStarted
from antiphon.people.acts import Doing, Helper, Journal
from antiphon.people.downlink import Downlink
from antiphon.workload.script import Clip, PersonScript, Script

PLACE_S = 0.02
"""Between the first sessions of a closed loop: all at once they would hold up each other."""
RETRY_S = 1.0
"""Until the place of somebody who gave up, or was refused, is taken again in a closed loop."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What the driver gives to the generators.

    has_vad      the microphone is open and the server detects turns; False: the client commits them
    patience_s   how long a person waits for the next sign of a reply before they give up
    picture_url  the URL by which a picture of this width and height is sent
    clip_urls    those of the frames of a clip
    beside       starts a helper; its end rings the generator that began it
    received     called when all replies of the script have come
    """

    downlink: Downlink
    log: Journal
    has_vad: bool
    patience_s: float
    picture_url: Callable[[int, int], str]
    clip_urls: Callable[[Clip], tuple[str, ...]]
    beside: Callable[[Doing], Helper]
    received: Callable[[], None]


def session_started(
    script: Script, now_s: float, arrival_s: float | None, waited_s: float | None
) -> SessionStarted:
    """Its first line in the log. arrival_s: when it was to come, in an open loop; waited_s: for a place."""
    is_person = isinstance(script, PersonScript)
    return SessionStarted(
        t_s=now_s,
        session=script.name,
        kind="person" if is_person else "job",
        tier="latency" if is_person else script.tier,
        arrival_s=arrival_s,
        waited_s=waited_s,
        reading_tokens_per_s=script.reading_tokens_per_s if is_person else None,
    )
