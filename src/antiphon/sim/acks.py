"""Playback acknowledgements: how a client tells the server what has been heard."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.core.rng import stream
from antiphon.metrics.log import AckSent
from antiphon.sim.process import Doing, Wait
from antiphon.sim.seat import Seat
from antiphon.workload.script import Acks, PersonScript


def acknowledge(script: PersonScript, seat: Seat, is_there: Callable[[], bool]) -> Doing:
    """Report what has been heard while a reply plays, and once when its playback stops; as long as the person
    is there."""
    acks = script.acks or Acks()
    rng = stream(script.seed, "acks", script.name)
    reported: dict[str, float] = {}
    while True:
        yield Wait(seat.log.now_s() + acks.interval_s + acks.jitter_s * rng.random())
        if not is_there():
            return
        now = seat.log.now_s()
        for reply in seat.ear.replies.values():
            heard_s = reply.playback.played_s(now) if reply.has_audio else 0.0
            if heard_s > reported.get(reply.id, 0.0):
                reported[reply.id] = heard_s
                if rng.random() >= acks.loss:
                    seat.up.send(seat.server.acknowledge, reply.id, heard_s)
                    session = seat.ear.session
                    seat.log.write(AckSent(t_s=now, session=session, response=reply.id, played_s=heard_s))
