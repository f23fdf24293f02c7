"""Runs: arrivals, and every way in which a run ends."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from antiphon.bench import target
from antiphon.bench.logfile import LogUnwritable, LogWriter, read
from antiphon.bench.progress import RunProgress
from antiphon.bench.run import run
from antiphon.bench.target import DrivenServer, Pace, model_of
from antiphon.core.errors import ConfigError
from antiphon.metrics.log import (
    ClientSampled,
    ErrorSeen,
    Event,
    ResponseEnded,
    ResponseStarted,
    RunEnded,
    ServerSampled,
    SessionEnded,
    SessionQueued,
    SessionRefused,
    SessionStarted,
    TurnStarted,
)
from antiphon.metrics.recorder import fold
from antiphon.workload.script import JobCall, JobScript, PersonScript, Script, TurnScript, Voiced
from bench.events import of
from bench.fake_server import FakeServer, Manner


def people(spacing_s: float = 0.0, speech_s: float = 0.1) -> Iterator[Script]:
    """Without end: each says one thing."""
    number = 0
    while True:
        yield PersonScript(f"p{number}", number * spacing_s, number, (TurnScript(0.0, (Voiced(speech_s),)),))
        number += 1


async def play(path: Path, server: FakeServer, scripts: Iterator[Script], pace: Pace) -> list[Event]:
    with LogWriter(path / "run.jsonl") as log:
        reason = await run(DrivenServer(server.url, "fake/echo"), scripts, pace, log)
    events = list(read(path / "run.jsonl"))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].reason == reason
    return events


async def test_closed_loop(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.1)) as server:
        events = await play(tmp_path, server, people(), Pace(concurrency=3, num_sessions=7))
    assert server.most_open == 3
    assert [event.reason for event in of(SessionEnded, events)] == ["done"] * 7
    assert all(event.arrival_s is None for event in of(SessionStarted, events))


@pytest.mark.parametrize("fails", ["write", "flush"])
async def test_a_log_that_cannot_be_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A failing write inside a session, and the flush of every second, are told as themselves."""
    monkeypatch.setattr("antiphon.bench.run.SAMPLE_S", 0.05)
    failure, written = LogUnwritable("cannot write the log: No space left on device"), []
    with LogWriter(tmp_path / "run.jsonl") as log:

        def full(event: Event | None = None) -> None:
            if (isinstance(event, ResponseStarted) or event is None) and not written:
                written.append(event)
                raise failure

        monkeypatch.setattr(log, fails, full)
        async with FakeServer(Manner(reply_s=0.1)) as server:
            with pytest.raises(LogUnwritable) as raised:
                await run(DrivenServer(server.url, "fake/echo"), people(), Pace(concurrency=2), log)
    assert raised.value is failure


async def test_closed_loop_whose_places_are_free_once_replies_have_come(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.8, speed=8.0)) as server:
        pace = Pace(concurrency=1, frees_early=True, num_sessions=3)
        events = await play(tmp_path, server, people(), pace)
    assert [event.reason for event in of(SessionEnded, events)] == ["done"] * 3
    begun, received = of(SessionStarted, events), of(ResponseEnded, events)
    for started, reply in zip(begun[1:], received[:-1], strict=True):
        assert reply.t_s <= started.t_s < reply.t_s + 0.2
    assert server.most_open > 1


async def test_places_among_arrivals_that_are_free_once_replies_have_come(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.8, speed=8.0)) as server:
        pace = Pace(max_concurrency=1, frees_early=True, num_sessions=3)
        events = await play(tmp_path, server, people(0.02), pace)
    assert [event.reason for event in of(SessionEnded, events)] == ["done"] * 3
    begun, received = of(SessionStarted, events), of(ResponseEnded, events)
    for started, reply in zip(begun[1:], received[:-1], strict=True):
        assert reply.t_s <= started.t_s < reply.t_s + 0.2
        assert started.waited_s
        assert started.arrival_s is not None
    assert server.most_open > 1


async def test_early_places_are_left_by_who_is_lost(tmp_path: Path) -> None:
    async with FakeServer(Manner(is_silent=True)) as server:
        pace = Pace(concurrency=1, frees_early=True, num_sessions=2, patience_s=0.1)
        events = await play(tmp_path, server, people(), pace)
    assert [event.reason for event in of(SessionEnded, events)] == ["failed"] * 2


async def test_open_loop_waits_for_nobody(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.6)) as server:
        events = await play(tmp_path, server, people(0.1), Pace(num_sessions=5))
    all_started = of(SessionStarted, events)
    start_s = all_started[0].arrival_s or 0.0
    for number, started in enumerate(all_started):
        assert started.arrival_s == pytest.approx(start_s + number * 0.1)
        assert 0 <= started.t_s - started.arrival_s < 0.15
    assert server.most_open == 5


async def test_who_finds_no_place_waits_for_one_in_order(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.4, speed=8.0)) as server:
        events = await play(tmp_path, server, people(0.02), Pace(max_concurrency=2, num_sessions=5))
    assert server.most_open == 2
    all_started = of(SessionStarted, events)
    assert [started.session for started in all_started] == ["p0", "p1", "p2", "p3", "p4"]
    assert [event.session for event in of(SessionQueued, events)] == ["p2", "p3", "p4"]
    start_s = all_started[0].arrival_s or 0.0
    ended_s = [event.t_s for event in of(SessionEnded, events)]
    for number, started in enumerate(all_started):
        assert started.arrival_s == pytest.approx(start_s + number * 0.02)
        waited_s = 0.0 if number < 2 else ended_s[number - 2] - started.arrival_s
        assert started.waited_s == pytest.approx(waited_s, abs=0.05)


async def test_who_still_waits_when_time_is_up_has_not_come(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=5.0)) as server:
        pace = Pace(max_concurrency=1, duration_s=0.8, num_sessions=3)
        run = fold(await play(tmp_path, server, people(0.1), pace))
    assert [row.session for row in run.sessions] == ["p0"]
    assert run.queued_s == pytest.approx((0.7, 0.6), abs=0.1)


async def test_time_is_up(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=5.0)) as server:
        events = await play(tmp_path, server, people(), Pace(concurrency=2, duration_s=0.8))
    assert events[-1].reason == "duration"  # type: ignore[union-attr]
    assert [event.reason for event in of(SessionEnded, events)] == ["stopped", "stopped"]


async def test_interrupted_by_hand(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=5.0)) as server:
        asyncio.get_running_loop().call_later(0.8, os.kill, os.getpid(), signal.SIGINT)
        events = await play(tmp_path, server, people(), Pace(concurrency=2))
    assert events[-1].reason == "interrupted"  # type: ignore[union-attr]
    assert len(of(SessionEnded, events)) == 2


async def test_a_server_that_dies(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=5.0)) as server:
        death = asyncio.create_task(asyncio.sleep(0.9))
        death.add_done_callback(lambda _: asyncio.ensure_future(server.die()))
        pace = Pace(concurrency=2, lost_after_s=0.4)
        events = await play(tmp_path, server, people(), pace)
    assert events[-1].reason == "server_lost"  # type: ignore[union-attr]
    assert "is gone" in events[-1].message  # type: ignore[union-attr]
    assert [event.reason for event in of(SessionEnded, events)] == ["lost", "lost"]
    assert of(TurnStarted, events)


async def test_nobody_there(tmp_path: Path) -> None:
    async with FakeServer() as server:
        url = server.url
    with LogWriter(tmp_path / "run.jsonl") as log:
        assert await run(DrivenServer(url, "fake/echo"), people(), Pace(concurrency=1), log) == "server_lost"
    assert [type(event) for event in read(tmp_path / "run.jsonl")] == [RunEnded]
    with pytest.raises(ConfigError, match="names no model"):
        await model_of(url)


async def test_a_server_that_is_loading_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "get", lambda url, key: b'{"object": "list", "data": []}')
    with pytest.raises(ConfigError, match="is loading"):
        await model_of("http://127.0.0.1:1")


async def test_what_does_not_speak_http_is_told_in_words() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"no HTTP answer, .*SSH-2.*Check the URL, .* there, or wait$"):
            await model_of(url, advice=", or wait")


@pytest.mark.parametrize("url", ["http://host:80O0", "http://[::1", "http://:8000", "ftp://host", "host"])
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="is not http"):
        await model_of(url)


async def test_who_is_refused_comes_again(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.1, num_refusals=3)) as server:
        events = await play(tmp_path, server, people(), Pace(concurrency=1, num_sessions=1))
    refused = of(SessionRefused, events)
    assert [(event.code, event.retry_after_s) for event in refused] == [("503", 0.1)] * 2
    assert of(SessionEnded, events)[0].reason == "done"


async def test_in_an_open_loop_who_is_refused_is_gone(tmp_path: Path) -> None:
    async with FakeServer(Manner(reply_s=0.1, num_refusals=2)) as server:
        events = await play(tmp_path, server, people(0.05), Pace(num_sessions=3))
    assert len(of(SessionRefused, events)) == 1
    assert len(of(SessionEnded, events)) == 2


async def test_what_is_wrong_for_all_shows_at_once(tmp_path: Path) -> None:
    with_vad = Pace(concurrency=1, turn_detection="server_vad")
    async with FakeServer(Manner(has_vad=False)) as server:
        with LogWriter(tmp_path / "vad.jsonl") as log, pytest.raises(ConfigError, match=r"update: no"):
            await run(DrivenServer(server.url, "fake/echo"), people(), with_vad, log)
        assert list(read(tmp_path / "vad.jsonl"))[-1].reason == "failed"  # type: ignore[union-attr]
        with LogWriter(tmp_path / "model.jsonl") as log, pytest.raises(ConfigError, match=r"404.*not exist"):
            await run(DrivenServer(server.url, "other"), people(), Pace(concurrency=1), log)
        assert await model_of(server.url) == "fake/echo"


async def test_samples_of_both_sides(tmp_path: Path) -> None:
    page = '# TYPE antiphon_steps counter\nantiphon_steps_total{stage="talker"} 7\nother 1\n'
    async with FakeServer(Manner(reply_s=1.0, metrics=page)) as server:
        events = await play(tmp_path, server, people(), Pace(concurrency=1, num_sessions=1))
    assert of(ServerSampled, events)[0].values == {'antiphon_steps_total{stage="talker"}': 7.0}
    assert of(ClientSampled, events)[-1].cpu_s > 0


async def test_a_job_keeps_the_order_of_its_graph(tmp_path: Path) -> None:
    calls = (
        JobCall("plan", 5),
        JobCall("test", 5, (0,), 0.3),
        JobCall("write", 5, (0,)),
        JobCall("end", 5, (1, 2)),
    )
    job = JobScript("agent", 0.0, calls)
    async with FakeServer() as server:
        events = await play(tmp_path, server, iter([job]), Pace(concurrency=1))
    prompts = [event["item"]["content"][0]["text"] for event in server.of("conversation.item.create")]
    assert prompts == ["plan", "write", "test", "end"]
    assert [event.turn for event in of(ResponseStarted, events)] == [0, 2, 1, 3]
    started = of(SessionStarted, events)[0]
    assert (started.kind, started.tier) == ("job", "best_effort")
    assert of(SessionEnded, events)[0].reason == "done"


async def test_progress_tells_what_is_going_on(tmp_path: Path) -> None:
    progress = RunProgress(Console(file=io.StringIO()))
    async with FakeServer(Manner(reply_s=0.3, gap_s=0.3)) as server:
        with progress, LogWriter(tmp_path / "run.jsonl", watch=progress.saw) as log:
            await run(
                DrivenServer(server.url, "fake/echo"), people(), Pace(concurrency=1, num_sessions=2), log
            )
    line = progress.line(12.0)
    assert "0 sessions  2 replies, 0 of them failed  TTFP p90 0." in line
    assert "2 gaps  0 refused  0 errors" in line
    assert not any(line.startswith("refused") for line in progress.warnings())
    progress.saw(ResponseEnded(t_s=9.0, session="sess", response="resp", status="failed"))
    assert "3 replies, 1 of them failed" in progress.line(12.0)


def test_progress_counts_one_of_a_thing_and_no_late_cancels() -> None:
    progress = RunProgress(Console(file=io.StringIO()))
    progress.saw(SessionStarted(t_s=1.0, session="a", kind="person"))
    for code in ("server_error", "response_cancel_not_active"):
        progress.saw(ErrorSeen(t_s=2.0, session="a", code=code, message="m"))
    assert "1 session  0 replies" in progress.line(12.0)
    assert progress.line(12.0).endswith("0 refused  1 error")


def test_progress_in_a_file_is_not_wrapped() -> None:
    told = io.StringIO()
    progress = RunProgress(Console(file=told, width=80))
    with progress:
        for now in (10.0, 20.0):
            progress.show(now)
    assert told.getvalue().splitlines() == [progress.line(10.0), progress.line(20.0)]


async def test_progress_tells_why_people_were_refused(tmp_path: Path) -> None:
    progress = RunProgress(Console(file=io.StringIO()))
    async with FakeServer(Manner(reply_s=0.1, num_refusals=3)) as server:
        with progress, LogWriter(tmp_path / "run.jsonl", watch=progress.saw) as log:
            await run(
                DrivenServer(server.url, "fake/echo"), people(), Pace(concurrency=1, num_sessions=1), log
            )
    line, *_ = progress.warnings()
    assert line.startswith("refused 2 times, the last one with HTTP 503: ")
    assert "2 refused" in progress.line(12.0)
