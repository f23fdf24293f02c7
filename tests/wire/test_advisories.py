"""Advisories on a session: one at a time, one every half second, each answered as it came."""

from __future__ import annotations

from math import isnan
from typing import Any

import msgspec
import pytest

from antiphon.core.errors import SessionGone, Throttled
from antiphon.core.facts import ResponseRequested, TurnAdvised
from antiphon.core.plans import AdvisoryAnswered, StagePrepared
from antiphon.wire.advisories import MIN_GAP_S, AdvisoryRequest, told
from wire.harness import Driver, kinds

HERE = StagePrepared("thinker", 12, 10, 0, False)
AWAY = StagePrepared("thinker", 4, 10, 8, False)
COMING = StagePrepared("talker", 0, 6, 6, True)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def advise(driver: Driver, **fields: Any) -> list[dict[str, Any]]:
    return driver.send("antiphon.advise", **fields)


def answer(driver: Driver, *stages: StagePrepared) -> list[dict[str, Any]]:
    return driver.output(AdvisoryAnswered(driver.session.id, "history", stages))


def test_the_engine_is_told_and_its_answer_is_passed_on(driver: Driver) -> None:
    assert advise(driver, prepare="turn", expected_arrival=2, confidence=0.25) == []
    fact = driver.fact(TurnAdvised)
    assert (fact.session, fact.prepare, fact.expected_s) == (driver.session.id, "turn", 2.0)
    assert fact.confidence == 0.25
    (event,) = answer(driver, HERE)
    del event["event_id"]
    assert event == {
        "type": "antiphon.advised",
        "session_id": driver.session.id,
        "prepare": "history",
        "action": "in_place",
        "why": "All KV that is kept of this session is on the device (thinker: 12 blocks on the device).",
        "stages": ({"unit": "thinker", "device_blocks": 12, "host_blocks": 10, "action": "in_place"},),
        "turn": None,
    }


def test_what_is_not_said_is_not_known(driver: Driver) -> None:
    advise(driver)
    fact = driver.fact(TurnAdvised)
    assert (fact.prepare, fact.confidence) == ("history", 1.0)
    assert isnan(fact.expected_s)


def test_a_flood_reaches_the_engine_as_one(driver: Driver) -> None:
    advise(driver)
    for _ in range(100):
        (event,) = advise(driver)
        assert (event["action"], event["retry_after_s"]) == ("throttled", MIN_GAP_S)
    answer(driver)
    driver.now += 0.2
    (event,) = advise(driver)
    assert event["retry_after_s"] == pytest.approx(MIN_GAP_S - 0.2)
    assert len(driver.facts_of(TurnAdvised)) == 1
    driver.now += 0.3
    assert advise(driver) == []
    assert len(driver.facts_of(TurnAdvised)) == 2


def test_none_is_asked_while_one_is_not_answered(driver: Driver) -> None:
    advise(driver)
    driver.now += 100.0
    assert kinds(advise(driver)) == ["antiphon.advised"]
    assert kinds(answer(driver)) == ["antiphon.advised"]
    assert advise(driver) == []


def test_those_beside_the_socket_count_as_well_and_the_client_is_told_nothing(driver: Driver) -> None:
    session, asked = driver.session, AdvisoryRequest(session_id=driver.session.id)
    assert len(session.advise(asked, 0.0)) == 1
    with pytest.raises(Throttled):
        session.advise(asked, 0.1)
    assert answer(driver, HERE) == []
    with pytest.raises(Throttled) as error:
        session.advise(asked, 0.1)
    assert error.value.retry_after_s == pytest.approx(0.4)
    session.close(1.0)
    with pytest.raises(SessionGone):
        session.advise(asked, 2.0)
    assert answer(driver, HERE) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"prepare": "all"},
        {"expected_arrival": -0.1},
        {"expected_arrival": 3601},
        {"expected_arrival": 10**400},
        {"expected_arrival": True},
        {"expected_arrival": "2"},
        {"confidence": 1.01},
        {"confidence": -1},
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(driver: Driver, wrong: dict[str, Any]) -> None:
    assert driver.error("antiphon.advise", **wrong)["param"] == next(iter(wrong))
    assert driver.error("antiphon.advise", session_id="other")["code"] == "unknown_parameter"
    for value in ("NaN", "1e999", "-Infinity"):
        (event,) = driver.frame(f'{{"type": "antiphon.advise", "expected_arrival": {value}}}')
        assert event["type"] == "error"
    assert not driver.facts_of(TurnAdvised)
    assert advise(driver) == []


def test_an_answer_says_the_most_that_is_done_and_why() -> None:
    def action(*stages: StagePrepared) -> tuple[str, list[str]]:
        answered = told(AdvisoryAnswered("s", "history", stages))
        return answered.action, [stage.action for stage in answered.stages]

    assert action() == ("none", [])
    assert action(HERE) == ("in_place", ["in_place"])
    assert action(HERE, AWAY) == ("on_request", ["in_place", "on_request"])
    assert action(AWAY, COMING) == ("bring", ["on_request", "bring"])
    assert told(AdvisoryAnswered("s", "history", (AWAY,))).why == (
        "Some KV of this session is on the host only (thinker: 4 blocks on the device and 8 to bring);"
        " this preset brings KV back only when a request waits for it."
    )
    begun = told(AdvisoryAnswered("s", "turn", (COMING,), "begun"))
    assert begun.turn == "begun"
    assert "as far as links and room allow. What there is of the turn is encoded" in begun.why
    late = told(AdvisoryAnswered("s", "history", (msgspec.structs.replace(COMING, why="too late"), HERE)))
    assert late.why.endswith("as far as links and room allow (talker: too late).")


@pytest.mark.parametrize("stages", [(), (HERE,), (AWAY,)])
def test_a_turn_that_was_passed_over_for_low_confidence_is_told_so(stages: tuple[StagePrepared, ...]) -> None:
    answered = told(AdvisoryAnswered("s", "turn", stages, is_likely=False))
    assert answered.turn == "unlikely"
    assert answered.why.endswith(
        " Nothing of the turn is encoded or prefilled ahead: its confidence is below 0.5."
    )
    history = told(AdvisoryAnswered("s", "history", stages, is_likely=False))
    assert history.turn is None
    assert "Nothing of the turn" not in history.why


def test_a_turns_advisory_tells_the_reply_as_the_client_would_ask_for_it(driver: Driver) -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    driver.send("session.update", session={"type": "realtime", "instructions": "Be brief.", "tools": [tool]})
    advise(driver, prepare="turn")
    reply = driver.fact(TurnAdvised).reply
    driver.send("response.create")
    asked = driver.fact(ResponseRequested)
    assert reply is not None
    assert reply == msgspec.structs.replace(asked, response="", item_id="")
    assert (reply.instructions, len(reply.tools)) == ("Be brief.", 1)


def test_an_advisory_of_history_tells_no_reply(driver: Driver) -> None:
    advise(driver)
    assert driver.fact(TurnAdvised).reply is None
