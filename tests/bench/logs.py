"""Small logs of runs for tests: people who speak, replies with a gap, a barge-in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from antiphon.metrics.log import (
    AudioDelta,
    Event,
    Interrupted,
    ResponseEnded,
    ResponseStarted,
    RunEnded,
    RunStarted,
    ServerSampled,
    SessionEnded,
    SessionStarted,
    TurnEnded,
    TurnStarted,
)


def started(label: str, seed: int, concurrency: int | None = 2) -> RunStarted:
    return RunStarted(
        t_s=0.0,
        label=label,
        url="http://there",
        workload="talk",
        seed=seed,
        command="test",
        commit="abc",
        machine="here",
        version="0",
        unix_s=0.0,
        options={"load": {"closed": {"concurrency": concurrency}} if concurrency else {"open": {}}},
    )


def reply(session: str, turn: int, at_s: float, ttfp_s: float, *, barge_in: bool = False) -> list[Event]:
    """A turn that ends at `at_s`, and six seconds of reply in pieces of one, 1.2 s apart after the third."""
    response = f"{session}-{turn}"
    first_s = at_s + ttfp_s
    times = [first_s, first_s + 0.5, first_s + 1.0, first_s + 4.2, first_s + 4.4, first_s + 4.6]
    events: list[Event] = [
        TurnStarted(t_s=at_s - 1, session=session, turn=turn, modality="speech"),
        TurnEnded(t_s=at_s, session=session, turn=turn, speech_end_s=at_s - 0.1, audio_s=1.0),
        ResponseStarted(t_s=at_s + 0.01, session=session, turn=turn, response=response, wants="speech"),
    ]
    events += [AudioDelta(t_s=time_s, session=session, response=response, audio_s=1.0) for time_s in times]
    status = "completed"
    if barge_in:
        cut = Interrupted(t_s=first_s + 4.7, session=session, response=response, kind="barge_in", heard_s=3.5)
        events.append(cut)
        status = "cancelled"
    events.append(ResponseEnded(t_s=first_s + 4.8, session=session, response=response, status=status))
    return events


def write_log(path: Path, label: str = "a", seed: int = 0, *, concurrency: int | None = 2) -> Path:
    """Two people with three turns each, the last one barged into; server samples; a proper end."""
    events: list[Event] = [started(label, seed, concurrency)]
    for index, session in enumerate(("p0", "p1")):
        events.append(SessionStarted(t_s=0.5, session=session, kind="person"))
        for turn in range(3):
            ttfp_s = 0.2 + 0.1 * index + 0.05 * turn + 0.01 * seed
            events += reply(session, turn, 2.0 + 9 * turn, ttfp_s, barge_in=index == 1 and turn == 2)
        events.append(SessionEnded(t_s=28.0, session=session, reason="done"))
    for time_s in range(0, 28, 4):
        blocks = {
            "antiphon_kv_blocks": 40,
            "antiphon_kv_blocks_free": 40 - time_s,
            "antiphon_kv_blocks_idle": 4,
        }
        values = {f'{name}{{stage="thinker"}}': float(value) for name, value in blocks.items()}
        events.append(ServerSampled(t_s=time_s, values=values))
    events[1:] = sorted(events[1:], key=lambda event: event.t_s)
    events.append(RunEnded(t_s=28.5, reason="finished"))
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return path
