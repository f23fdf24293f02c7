"""Playback acknowledgements: how a client tells the server what has been heard."""

from __future__ import annotations

import asyncio

from antiphon.bench.ear import Ear, Reply
from antiphon.bench.logfile import LogWriter
from antiphon.bench.target import Target
from antiphon.bench.wire_client import ConnectionLost, WireClient
from antiphon.core.rng import stream
from antiphon.metrics.log import AckSent
from antiphon.workload.script import Acks, PersonScript

EXTENSION = "playback.ack"


def wants_acks(target: Target, ear: Ear) -> bool:
    """Does this server get acks? Where it is not forced, only if it says that it knows them."""
    if target.acks == "auto":
        return EXTENSION in (ear.config.get("x_extensions") or ())
    return target.acks == "always"


async def acknowledge(script: PersonScript, ear: Ear, client: WireClient, log: LogWriter) -> None:
    """Report what has been heard while a reply plays, and once when its playback stops. Until cancelled."""
    acks = script.acks or Acks()
    rng = stream(script.seed, "acks", script.name)
    reported: dict[str, float] = {}
    try:
        while True:
            await asyncio.sleep(acks.interval_s + acks.jitter_s * rng.random())
            now = log.now_s()
            for reply in ear.replies.values():
                heard_s = reply.playback.played_s(now) if reply.has_audio else 0.0
                if heard_s > reported.get(reply.id, 0.0):
                    reported[reply.id] = heard_s
                    if rng.random() >= acks.loss:
                        await _report(reply, heard_s, ear, client, log)
    except ConnectionLost:
        return


async def _report(reply: Reply, heard_s: float, ear: Ear, client: WireClient, log: LogWriter) -> None:
    ack = {"type": EXTENSION, "response_id": reply.id, "content_index": reply.content_index}
    if reply.item:
        ack["item_id"] = reply.item
    await client.send(ack | {"played_ms": round(1000 * heard_s)})
    log.write(AckSent(t_s=log.now_s(), session=ear.session, response=reply.id, played_s=heard_s))
