"""Playback acknowledgements: how a client tells the server what has been heard."""

from __future__ import annotations

from typing import Any

from antiphon.core.rng import stream
from antiphon.metrics.log import AckSent
from antiphon.people.acts import Doing, Send, Wait
from antiphon.people.downlink import HeardReply
from antiphon.people.seat import Seat
from antiphon.workload.script import Acks, PersonScript

EXTENSION = "playback.ack"


def acknowledge(script: PersonScript, seat: Seat) -> Doing:
    """Report what has been heard while a reply plays, and once when its playback stops. Until stopped."""
    acks, log, downlink = script.acks or Acks(), seat.log, seat.downlink
    rng = stream(script.seed, "acks", script.name)
    reported: dict[str, float] = {}
    while True:
        yield Wait(log.now_s() + acks.interval_s + acks.jitter_s * rng.random())
        now = log.now_s()
        for reply in [*downlink.replies.values()]:
            heard_s = reply.playback.played_s(now) if reply.has_audio else 0.0
            if heard_s > reported.get(reply.id, 0.0):
                reported[reply.id] = heard_s
                if rng.random() >= acks.loss:
                    yield Send(_report(reply, heard_s))
                    log.write(
                        AckSent(
                            t_s=log.now_s(), session=downlink.session, response=reply.id, played_s=heard_s
                        )
                    )


def _report(reply: HeardReply, heard_s: float) -> dict[str, Any]:
    """Not rounded: a whole number of milliseconds could be more than was played."""
    ack = {"type": EXTENSION, "response_id": reply.id, "content_index": reply.content_index}
    return ack | ({"item_id": reply.item} if reply.item else {}) | {"played_ms": 1000 * heard_s}
