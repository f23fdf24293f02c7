"""A client's end of one conversation: what the generators of one person, or of one job, share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.people.acts import Doing, Helper, Journal
from antiphon.people.downlink import Downlink
from antiphon.workload.script import Clip


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
