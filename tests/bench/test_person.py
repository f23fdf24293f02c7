"""What one person does to a server, and what they are logged to have met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.bench.logfile import LogWriter, read
from antiphon.bench.pictures import frame_urls
from antiphon.bench.run import run
from antiphon.bench.target import DrivenServer, Pace
from antiphon.metrics.log import (
    AckSent,
    AudioDelta,
    ErrorSeen,
    Event,
    Interrupted,
    LogEvent,
    ResponseEnded,
    ResponseStarted,
    SessionEnded,
    SpeechNoticed,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from antiphon.server.media import BoundedMedia
from antiphon.wire.limits import Limits, MediaRoom
from antiphon.workload.script import Acks, Clip, Interjection, PersonScript, Picture, TurnScript, Voiced
from bench.events import of
from bench.fake_server import FakeServer, Manner

SAID = (Voiced(0.2),)
BARGE_IN = (Interjection("barge_in", 0.15, 0.2),)


async def met(
    path: Path, server: FakeServer, *turns: TurnScript, acks: str = "auto", **pace: Any
) -> list[Event]:
    """The log of one person with these turns."""
    person = PersonScript(
        "ann", 0.0, 3, turns, Acks(0.05), reading_tokens_per_s=20.0, instructions="Be kind."
    )
    target = DrivenServer(server.url, "fake/echo", acks=acks)  # type: ignore[arg-type]
    with LogWriter(path / "run.jsonl") as log:
        assert await run(target, iter([person]), Pace(**pace), log) == "finished"
    return list(read(path / "run.jsonl"))


def order(events: list[Event], *kinds: type[LogEvent]) -> list[str]:
    return [type(event).__name__ for event in events if isinstance(event, kinds)]


async def test_a_committed_turn(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.3)) as server:
        turn = TurnScript(0.0, (Voiced(0.2, 0.1), Voiced(0.1, 9.0)), max_output_tokens=7)
        events = await met(tmp_path, server, turn)
    said = b"".join(bytes(len(event["audio"]) * 3 // 4) for event in server.of("input_audio_buffer.append"))
    assert len(said) / 48_000 == pytest.approx(0.4, abs=0.001)
    assert server.kinds()[-1] == "playback.ack"
    asked = server.of("response.create")[0]["response"]
    assert asked == {"output_modalities": ["audio"], "max_output_tokens": 7}
    assert server.of("session.update")[-1]["session"]["instructions"] == "Be kind."
    started, ended = of(TurnStarted, events)[0], of(TurnEnded, events)[0]
    assert ended.audio_s == pytest.approx(0.4, abs=0.001)
    assert 0.4 <= ended.speech_end_s - started.t_s < 0.6
    assert ended.manual
    assert sum(event.audio_s for event in of(AudioDelta, events)) == pytest.approx(0.3)
    (answer,) = of(ResponseEnded, events)
    assert (answer.status, answer.input_tokens, answer.cached_tokens) == ("completed", 12, 3)
    assert (answer.output_text_tokens, answer.output_audio_tokens) == (4, 5)
    assert order(events, TurnStarted, TurnEnded, ResponseStarted, ResponseEnded, SessionEnded) == [
        "TurnStarted",
        "TurnEnded",
        "ResponseStarted",
        "ResponseEnded",
        "SessionEnded",
    ]


async def test_people_listen_to_the_end_and_think(tmp_path: Path) -> None:
    """Four times as fast as it is heard: the next turn begins when it has been heard, not when it came."""
    async with FakeServer(Manner(reply_s=0.4, speed=8)) as server:
        events = await met(tmp_path, server, TurnScript(0.1, SAID), TurnScript(0.2, SAID))
    first = of(AudioDelta, events)[0].t_s
    begins = [event.t_s for event in of(TurnStarted, events)]
    assert 0.6 <= begins[1] - first < 0.8


async def test_reports_of_playback(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.4)) as server:
        events = await met(tmp_path, server, TurnScript(0.0, SAID))
    sent = server.of("playback.ack")
    assert [event["played_ms"] for event in sent] == sorted(event["played_ms"] for event in sent)
    assert sent[-1]["item_id"].startswith("item_resp_")
    assert len(sent) == len(of(AckSent, events)) >= 4
    async with FakeServer(Manner(extensions=())) as server:
        (tmp_path / "without").mkdir()
        assert not of(AckSent, await met(tmp_path / "without", server, TurnScript(0.0, SAID)))
        (tmp_path / "always").mkdir()
        assert of(AckSent, await met(tmp_path / "always", server, TurnScript(0.0, SAID), acks="always"))


async def test_reports_get_lost(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=1.0)) as server:
        lossy = PersonScript("ann", 0.0, 3, (TurnScript(0.0, SAID),), Acks(0.02, jitter_s=0.02, loss=0.5))
        with LogWriter(tmp_path / "run.jsonl") as log:
            await run(DrivenServer(server.url, "fake/echo"), iter([lossy]), Pace(), log)
    gaps_ms = np.diff([event["played_ms"] for event in server.of("playback.ack")])
    assert 5 <= len(gaps_ms) <= 25
    assert gaps_ms.max() > 50


async def test_a_typed_turn_with_a_picture_is_read(tmp_path: Path) -> None:
    async with FakeServer() as server:
        typed = TurnScript(0.0, text="Hello.", typing_s=0.1, pictures=(Picture(8, 6),), wants="text")
        events = await met(tmp_path, server, typed, TurnScript(0.0, SAID))
    shown, words = server.of("conversation.item.create")[0]["item"]["content"]
    assert shown["image_url"].startswith("data:image/png;base64,iVBOR")
    assert words == {"type": "input_text", "text": "Hello."}
    chars = sum(event.chars for event in of(TextDelta, events)[:4])
    assert chars == len("Well, I never did. ")
    assert of(TurnStarted, events)[0].modality == "text"
    assert of(TurnEnded, events)[0].t_s - of(TurnStarted, events)[0].t_s >= 0.1
    read_s = of(TurnStarted, events)[1].t_s - of(ResponseEnded, events)[0].t_s
    assert read_s == pytest.approx(chars / 4 / 20, abs=0.1)
    assert [event.wants for event in of(ResponseStarted, events)] == ["text", "speech"]


async def test_a_spoken_turn_with_a_clip(tmp_path: Path) -> None:
    clip = Clip(16, 12, 3, 0.25, seed=7)
    async with FakeServer() as server:
        await met(tmp_path, server, TurnScript(0.0, SAID, clips=(clip,)))
    (shown,) = server.of("conversation.item.create")[0]["item"]["content"]
    assert (shown["type"], shown["fps"], len(set(shown["video"]))) == ("input_video", 0.25, 3), "it moves"
    assert shown["video"] == list(frame_urls(Clip(16, 12, 3, 0.25, seed=7))), "the same again"
    assert shown["video"][0] != frame_urls(Clip(16, 12, 3, 0.25, seed=8))[0]
    part = BoundedMedia(Limits()).video_part(shown["video"], 0.25, MediaRoom(Limits(), ""))
    assert (part.width, part.height, part.num_frames, part.fps) == (16, 12, 3, 0.25)
    assert max(map(len, frame_urls(Clip(160, 120, 15, 0.25, seed=1)))) < 8000, "a clip stays small"


async def test_barging_in_with_a_committing_client(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.8, speed=2)) as server:
        cut = TurnScript(0.0, SAID, interjections=BARGE_IN)
        events = await met(tmp_path, server, cut, TurnScript(5.0, SAID))
    kinds = [kind for kind in server.kinds() if kind.startswith(("response.", "conversation.item.t"))]
    assert kinds == ["response.create", "response.cancel", "conversation.item.truncate", "response.create"]
    (cut_at,) = of(Interrupted, events)
    assert cut_at.heard_s == pytest.approx(0.15, abs=0.05)
    assert server.of("conversation.item.truncate")[0]["audio_end_ms"] == int(1000 * cut_at.heard_s)
    assert [event.status for event in of(ResponseEnded, events)] == ["cancelled", "completed"]
    assert of(TurnEnded, events)[1].audio_s == pytest.approx(0.4, abs=0.001)
    assert of(TurnStarted, events)[1].t_s - cut_at.t_s < 0.1


@pytest.mark.parametrize("turn_detection", ["manual", "server_vad"])
async def test_who_cuts_the_last_reply_hears_that_it_is_over(tmp_path: Path, turn_detection: str) -> None:
    """Else nobody would learn what was made of it in vain."""
    async with FakeServer(Manner(reply_s=0.8, speed=2)) as server:
        cut = TurnScript(0.0, SAID, interjections=BARGE_IN)
        events = await met(tmp_path, server, cut, turn_detection=turn_detection)
    assert len(of(Interrupted, events)) == 1
    assert [event.status for event in of(ResponseEnded, events)] == ["cancelled"]


async def test_an_open_microphone(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=2.0, speed=8, vad_silence_s=0.2)) as server:
        cut = TurnScript(0.1, SAID, interjections=BARGE_IN)
        events = await met(tmp_path, server, cut, turn_detection="server_vad")
    assert "response.create" not in server.kinds()
    assert "input_audio_buffer.commit" not in server.kinds()
    (ended,) = of(TurnEnded, events)
    assert not ended.manual
    assert 0.1 < ended.t_s - ended.speech_end_s < 0.4
    noticed = of(SpeechNoticed, events)
    assert [event.what for event in noticed[:3]] == ["started", "stopped", "started"]
    (cut_at,) = of(Interrupted, events)
    assert 0 <= cut_at.t_s - noticed[2].t_s < 0.05
    assert len(server.of("conversation.item.truncate")) == 1
    assert "response.cancel" not in server.kinds()


async def test_nobody_waits_for_the_echo_of_other_options(tmp_path: Path) -> None:
    """The server answers an open microphone by itself, so its settings say how long the next reply may be."""
    manner = Manner(reply_s=0.2, vad_silence_s=0.2, num_updates=2)
    async with FakeServer(manner) as server:
        turns = (TurnScript(0.0, SAID, max_output_tokens=5), TurnScript(0.1, SAID, max_output_tokens=6))
        events = await met(tmp_path, server, *turns, turn_detection="server_vad", patience_s=2.0)
    assert of(SessionEnded, events)[0].reason == "done"
    kinds = server.kinds()
    update = max(at for at, kind in enumerate(kinds) if kind == "session.update")
    assert server.seen[update]["session"]["max_output_tokens"] == 6
    assert "input_audio_buffer.append" in kinds[:update]
    begun, ended = of(TurnStarted, events)[1], of(TurnEnded, events)[1]
    assert 0.2 <= ended.speech_end_s - begun.t_s < 0.4


async def test_options_that_are_refused_end_the_session(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.2, most_tokens=9)) as server:
        turns = (TurnScript(0.0, SAID, max_output_tokens=5), TurnScript(0.1, SAID, max_output_tokens=10))
        events = await met(tmp_path, server, *turns, turn_detection="server_vad")
    (ended,) = of(SessionEnded, events)
    assert (ended.reason, ended.message) == (
        "failed",
        "the server refused the session's settings: session.update: no",
    )


async def test_the_next_turn_is_what_barged_in(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.6, speed=2)) as server:
        cut = TurnScript(0.0, SAID, interjections=BARGE_IN)
        events = await met(tmp_path, server, cut, TurnScript(9.0, SAID), turn_detection="server_vad")
    assert [event.turn for event in of(ResponseStarted, events)] == [0, 1]
    assert [event.status for event in of(ResponseEnded, events)] == ["cancelled", "completed"]
    assert of(TurnEnded, events)[1].audio_s == pytest.approx(0.4, abs=0.001)


async def test_a_server_that_does_not_interrupt(tmp_path: Path) -> None:
    """The person's own client stops the playback, after its reaction time."""
    async with FakeServer(Manner(reply_s=2.0, speed=2, interrupts=False, has_truncate=False)) as server:
        cut = TurnScript(0.0, SAID, interjections=BARGE_IN)
        events = await met(tmp_path, server, cut, turn_detection="server_vad")
    assert of(Interrupted, events)[0].heard_s == pytest.approx(0.35, abs=0.08)
    assert "response.cancel" in server.kinds()
    assert [event.code for event in of(ErrorSeen, events)] == ["unknown_event"]
    assert of(SessionEnded, events)[0].reason == "done"


@pytest.mark.parametrize("kind", ["backchannel", "failed_barge_in"])
async def test_listening_on(tmp_path: Path, kind: Any) -> None:
    async with FakeServer(Manner(reply_s=0.6, speed=2)) as server:
        murmur = (Interjection(kind, 0.1, 0.08), Interjection(kind, 30.0, 0.1))
        events = await met(tmp_path, server, TurnScript(0.0, SAID, interjections=murmur))
    assert [event.kind for event in of(Interrupted, events)] == [kind]
    assert server.kinds().count("input_audio_buffer.clear") == 1
    assert "response.cancel" not in server.kinds()
    assert of(SessionEnded, events)[0].t_s - of(AudioDelta, events)[0].t_s >= 0.6


async def test_a_turn_that_is_refused(tmp_path: Path) -> None:
    async with FakeServer(Manner(refuse_asks=True)) as server:
        events = await met(tmp_path, server, TurnScript(0.0, SAID), TurnScript(0.0, SAID))
    assert [event.code for event in of(ErrorSeen, events)] == ["rate_limit_exceeded"] * 2
    assert of(SessionEnded, events)[0].reason == "done"


async def test_patience_ends(tmp_path: Path) -> None:
    async with FakeServer(Manner(is_silent=True)) as server:
        events = await met(tmp_path, server, TurnScript(0.0, SAID), patience_s=0.3)
    assert of(SessionEnded, events)[0].reason == "failed"
    assert of(ErrorSeen, events)[0].code == "gave_up"
