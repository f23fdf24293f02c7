"""What happens to a simulated session happens on the wire, and the same is told of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from antiphon.core.facts import (
    ItemCut,
)
from antiphon.core.turns import ReplyPaused, ReplyResumed
from antiphon.sim import sessions as room
from sim.sides import MANUAL, Real, Simulated, ToldHearing, audio, ended, said, tokens
from wire.harness import pcm

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tokens"), st.integers(1, 8)),
        st.tuples(st.just("audio"), st.integers(20, 900)),
        st.tuples(st.just("wait"), st.integers(1, 1500)),
        st.tuples(st.just("ack"), st.integers(0, 2000)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("end"), st.sampled_from(["completed", "cancelled", "failed"])),
        st.tuples(st.just("cancel"), st.just(0)),
        st.tuples(st.just("notice"), st.sampled_from([ReplyPaused(), ReplyResumed()])),
        st.tuples(st.just("create"), st.just(0)),
    ),
    max_size=25,
)


@examples(max_examples=150)
@given(STEPS)
def test_the_same_happens_to_replies_as_on_the_wire(steps: list[tuple[str, Any]]) -> None:
    """Whatever a client and an engine do: the same cuts, cancellations and reports as with frames."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "Hearing", ToldHearing)
        sides = [Simulated(), Real()]
    for side in sides:
        side.create()
        sent_ms = [0]
        for kind, value in steps:
            _happen(side, kind, value, sent_ms)
    assert said(sides[0]) == said(sides[1])


def _happen(side: Simulated | Real, kind: str, value: Any, sent_ms: list[int]) -> None:
    response = side.responses[-1]
    match kind:
        case "tokens":
            side.output(tokens(response, value))
        case "audio":
            side.output(audio(response, value))
            sent_ms[0] += value
        case "wait":
            side.wait(value / 1024)
        case "ack":
            side.ack(response, value)
        case "truncate" if sent_ms[0]:
            side.truncate(response, int(value / 100 * sent_ms[0] / 2))
        case "end":
            side.output(ended(response, value))
        case "cancel":
            side.cancel(response)
        case "notice":
            side.notice(value)
        case "create":
            before = len(side.responses)
            side.create()
            if len(side.responses) > before:
                sent_ms[0] = 0
        case _:
            pass


@given(st.lists(st.sampled_from(["append", "commit", "clear", "create"]), max_size=12))
def test_who_commits_by_hand_speaks_from_the_first_audio_on(steps: list[str]) -> None:
    """The engine is told the same as over the wire."""
    simulated, real = Simulated(MANUAL), Real()
    manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    real._send({"type": "session.update", "session": manual})
    has_audio = False
    for step in steps:
        if step == "commit" and not has_audio:
            continue
        has_audio = step == "append" or (has_audio and step == "create")
        match step:
            case "append":
                simulated.append(0.2)
                real._send({"type": "input_audio_buffer.append", "audio": pcm(0.2)})
            case "commit":
                simulated.send("commit")
                real._send({"type": "input_audio_buffer.commit"})
            case "clear":
                simulated.send("clear")
                real._send({"type": "input_audio_buffer.clear"})
            case _:
                simulated.create()
                real.create()
    kinds = [[type(fact) for fact in side.facts] for side in (simulated, real)]
    assert kinds[0] == kinds[1]


def test_nobody_can_have_heard_more_than_was_sent() -> None:
    """What comes for a reply that is over is not sent; a client that counts it all the same is refused."""
    sides: list[Simulated | Real] = [Simulated(), Real()]
    for side in sides:
        side.create()
        for kind, value in (("tokens", 2), ("audio", 200), ("end", "completed"), ("audio", 400)):
            _happen(side, kind, value, [0])
        side.truncate(side.responses[0], 301)
    assert said(sides[0]) == said(sides[1])
    assert not any(isinstance(fact, ItemCut) for side in sides for fact in side.facts)
    simulated, real = sides
    assert isinstance(simulated, Simulated)
    assert isinstance(real, Real)
    (refused,) = [event.error for event in simulated.heard() if event.error is not None]
    assert [(refused.code, refused.message)] == real.errors
    for side in sides:
        side.truncate(side.responses[0], 300)
    assert said(simulated) == said(real)
    assert sum(isinstance(fact, ItemCut) for fact in real.facts) == 1
