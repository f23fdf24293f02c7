"""POST /v1/advisories: whose sessions, how often, and what it costs who floods it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from antiphon.core.facts import TurnAdvised
from antiphon.core.plans import StagePrepared
from antiphon.server import realtime
from antiphon.server.settings import ServerSettings
from antiphon.wire import advisories
from server.conftest import Running, Socket, eventually, running

KEYS = ServerSettings(api_keys=("one", "two"))
URL = "/v1/advisories"


def client(server: Running, key: str = "one") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.http, headers={"Authorization": f"Bearer {key}"})


def socket(server: Running, key: str = "one") -> Any:
    return server.socket(additional_headers={"Authorization": f"Bearer {key}"})


async def session_of(socket: Socket) -> str:
    return (await socket.until("session.created"))[-1]["session"]["id"]


def outcomes(server: Running) -> dict[str, float]:
    family = next(iter(server.serving.metrics.advisories.collect()))
    return {one.labels["outcome"]: one.value for one in family.samples if one.name.endswith("_total")}


async def test_the_engine_is_told_and_the_answer_says_what_is_done(served: Running) -> None:
    served.engine.prepared = (StagePrepared("thinker", 4, 10, 8, True),)
    async with served.socket() as socket, client(served) as http:
        session = await session_of(socket)
        asked = {"session_id": session, "prepare": "turn", "expected_arrival": 1.5, "confidence": 0.5}
        answer = await http.post(URL, json=asked)
        assert answer.status_code == 202
        body = answer.json()
        assert {name: body[name] for name in ("session_id", "prepare", "action")} == {
            "session_id": session,
            "prepare": "turn",
            "action": "bring",
        }
        assert "8 to bring" in body["why"]
        assert body["stages"] == [
            {"unit": "thinker", "device_blocks": 4, "host_blocks": 10, "action": "bring"}
        ]
        (fact,) = served.engine.of(TurnAdvised)
        assert (fact.session, fact.prepare, fact.expected_s) == (session, "turn", 1.5)
        assert fact.confidence == 0.5
        assert fact.reply is not None
        await socket.send("session.update", session={"type": "realtime"})
        assert (await socket.read())["type"] == "session.updated", "the socket is told nothing"


async def test_another_keys_session_is_as_unknown_as_none() -> None:
    async with running(KEYS) as server, socket(server) as one, client(server, "two") as http:
        session = await session_of(one)
        foreign = await http.post(URL, json={"session_id": session})
        unknown = await http.post(URL, json={"session_id": "sess_none"})
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.text.replace(session, "sess_none") == unknown.text
        assert foreign.json()["error"]["code"] == "session_not_found"
        assert foreign.json()["error"]["param"] == "session_id"
        wrong = await http.post(URL, json={"session_id": session}, headers={"Authorization": "Bearer no"})
        assert wrong.status_code == 401
        async with client(server) as own:
            assert (await own.post(URL, json={"session_id": session})).status_code == 202
        assert len(server.engine.of(TurnAdvised)) == 1


async def test_a_flood_of_one_session_is_throttled(served: Running) -> None:
    async with served.socket() as socket, client(served) as http:
        asked = {"session_id": await session_of(socket)}
        answers = [await http.post(URL, json=asked) for _ in range(20)]
        statuses = [answer.status_code for answer in answers]
        assert statuses[0] == 202
        assert statuses.count(429) >= 15
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["code"] == "throttled"
        assert len(served.engine.of(TurnAdvised)) == statuses.count(202)
        assert outcomes(served)["throttled"] == statuses.count(429)


async def test_a_flood_of_unknown_sessions_leaves_nothing_behind(served: Running) -> None:
    async with served.socket() as socket, client(served) as http:
        session = await session_of(socket)
        for number in range(300):
            answer = await http.post(URL, json={"session_id": f"sess_{number}"})
            assert answer.status_code == 404
        assert set(served.serving.sessions) == {session}
        assert len(outcomes(served)) <= 3
        assert not served.engine.of(TurnAdvised)
    await eventually(lambda: not served.serving.sessions)


@pytest.mark.parametrize(
    "wrong",
    [
        '{"session_id": "SESSION", "prepare": "all"}',
        '{"session_id": "SESSION", "expected_arrival": -1}',
        '{"session_id": "SESSION", "expected_arrival": NaN}',
        '{"session_id": "SESSION", "expected_arrival": 1e999}',
        '{"session_id": "SESSION", "expected_arrival": 3601}',
        '{"session_id": "SESSION", "confidence": 1.5}',
        '{"session_id": "SESSION", "more": 1}',
        '{"session_id": ""}',
        "{}",
        "[]",
        "{",
    ],
)
async def test_what_is_wrong_is_named(served: Running, wrong: str) -> None:
    async with served.socket() as socket, client(served) as http:
        body = wrong.replace("SESSION", await session_of(socket))
        assert (await http.post(URL, content=body)).status_code == 400
        assert not served.engine.of(TurnAdvised)


async def test_a_body_is_small(served: Running) -> None:
    async with client(served) as http:
        answer = await http.post(URL, content=json.dumps({"session_id": "a" * 5000}))
        assert answer.status_code == 413


async def test_an_engine_in_a_long_step_is_not_waited_for(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "ADVISORY_WAIT_S", 0.02)
    monkeypatch.setattr(advisories, "MIN_GAP_S", 0.0)
    served.engine.prepared = None
    async with served.socket() as socket, client(served) as http:
        asked = {"session_id": await session_of(socket)}
        answer = await http.post(URL, json=asked)
        assert (answer.status_code, answer.json()["action"]) == (202, "pending")
        assert (await http.post(URL, json=asked)).status_code == 429, "the first is not answered"


async def test_a_client_that_leaves_meanwhile_is_a_session_that_is_gone(served: Running) -> None:
    served.engine.prepared = None
    async with client(served) as http:
        async with served.socket() as socket:
            session = await session_of(socket)
            asking = asyncio.create_task(http.post(URL, json={"session_id": session}))
            await eventually(lambda: bool(served.engine.of(TurnAdvised)))
        assert (await asking).status_code == 404


async def test_a_client_may_say_so_on_its_socket(served: Running) -> None:
    async with served.socket() as socket:
        session = await session_of(socket)
        await socket.send("antiphon.advise", expected_arrival=2)
        event = await socket.read()
        assert (event["type"], event["session_id"], event["action"]) == ("antiphon.advised", session, "none")
        await socket.send("antiphon.advise")
        assert (await socket.read())["action"] == "throttled"
        assert outcomes(served) == {"taken": 1.0, "throttled": 1.0}
