"""A cascade's replies against transformers: alone, batched, preempted, interrupted and prepared."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphon import Omni
from antiphon.checkpoint.demo_cascade import WINDOW_S
from antiphon.core.conversation import Item, TokensPart
from antiphon.core.facts import ResponseRequested
from antiphon.metrics.names import Metric
from antiphon.wire.session import NOTHING_SAID
from exactness.cascade import QUESTIONS, SPOKEN, Oracle, Orders, ask, check, check_all_free, recording, said
from exactness.talk import Talk


def together(oracle: Oracle, **overrides: Any) -> Talk:
    """All ask within a few steps of each other, and each is told what it would be told alone."""
    orders = Orders()
    talk = Talk(oracle.omni.engine, recorder=orders, **overrides)
    for i, question in enumerate(QUESTIONS):
        talk.open(f"s{i}", question)
        ask(talk, f"s{i}")
        talk.step(2)
    talk.run()
    for part in SPOKEN:
        expected = oracle.transcript(part)
        assert orders.transcripts[part.key] == expected
        assert len(expected) > 1
    assert len(set(orders.transcripts.values())) > 1, "recordings are told apart"
    for i, question in enumerate(QUESTIONS):
        check(talk.said[f"s{i}"], oracle.reply((question,)), oracle)
    talk.close(*(f"s{i}" for i in range(len(QUESTIONS))))
    talk.run()
    check_all_free(talk)
    return talk


def test_batched_it_says_what_transformers_says(oracle: Oracle):
    together(oracle)
    assert max(len(oracle.sound(oracle.reply((one,)))) for one in QUESTIONS) > 24 * 64 * 3
    assert not oracle.tail or oracle.transcript(SPOKEN[0])


def test_preempted_it_says_the_same(oracle: Oracle):
    small = {"num_blocks": 4, "headroom_blocks": 0}
    talk = together(oracle, transcriber=small, thinker={"num_blocks": 12, "headroom_blocks": 0})
    stats = talk.driver.stats()
    assert stats[Metric.PREEMPTIONS.of("transcriber")] + stats[Metric.PREEMPTIONS.of("thinker")] > 0


def test_interrupted_the_next_turn_answers_what_was_heard(omni: Omni, oracle: Oracle):
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders)
    talk.open("s", QUESTIONS[0])
    ask(talk, "s")
    while not talk.said["s"].audio:
        talk.step()
    talk.cancel("s", keep=3)
    talk.run()
    heard = TokensPart(tuple(talk.said["s"].text[:3]))
    second = said(SPOKEN[1], name="q2")
    talk.add("s", second)
    ask(talk, "s", response="again")
    talk.run()
    history = (QUESTIONS[0], Item("reply-s", "assistant", (heard,)), second)
    check(talk.said["again"], oracle.reply(history), oracle)
    end = talk.said["again"].end
    assert end is not None
    assert end.usage.cached_tokens > 0, "the first turn's KV is found again"
    assert orders.num_encoded == 2, "what was written down once is not heard again"
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_what_was_read_in_pauses_changes_nothing(omni: Omni, oracle: Oracle):
    """Neither of a turn that went on, nor of what precedes one, nor of one that ends in its pause."""
    orders = Orders()
    talk = Talk(omni.engine, recorder=orders)
    talk.open("s")
    asked = ResponseRequested("s", "", "")
    talk.foresee("s", NOTHING_SAID, asked)
    talk.step(50)
    assert talk.driver.stats()[Metric.PREPARED_TOKENS.of("thinker")] > 0, "what the template begins with"
    for item, steps in ((QUESTIONS[2], 50), (QUESTIONS[0], 3), (QUESTIONS[3], 50)):
        talk.foresee("s", item, asked)
        talk.step(steps)
    before = orders.num_encoded
    talk.add("s", QUESTIONS[3])
    ask(talk, "s")
    talk.run()
    assert orders.num_encoded == before
    check(talk.said["s"], oracle.reply((QUESTIONS[3],)), oracle)
    end = talk.said["s"].end
    assert end is not None
    assert end.usage.cached_tokens > 0
    talk.close("s")
    talk.run()
    check_all_free(talk)


def test_a_reply_that_nobody_waits_for_is_not_written_down(omni: Omni):
    talk = Talk(omni.engine)
    talk.open("s", QUESTIONS[3])
    ask(talk, "s")
    talk.step()
    talk.cancel("s")
    talk.run()
    assert talk.said["s"].end is not None
    assert talk.said["s"].end.status == "cancelled"
    check_all_free(talk)


def test_too_long_a_recording_fails_alone(omni: Omni, oracle: Oracle):
    talk = Talk(omni.engine)
    talk.open("long", said(recording(9, 4.2)))
    talk.open("s", QUESTIONS[0])
    ask(talk, "long")
    ask(talk, "s")
    talk.run()
    end = talk.said["long"].end
    assert end is not None
    assert end.status == "failed"
    assert "this model hears 4 s at a time" in end.message
    check(talk.said["s"], oracle.reply((QUESTIONS[0],)), oracle)


def test_the_wire_is_told_how_the_text_is_drawn_and_how_long_a_recording_may_be(omni: Omni):
    """What a client wishes of the text is the thinker's, and not the transcriber's."""
    assert next(iter(omni.engine.info.sampling)) == "thinker"
    assert omni.engine.info.max_recording_s == WINDOW_S


def test_a_given_text_is_read_aloud(omni: Omni, oracle: Oracle):
    talk = Talk(omni.engine)
    talk.open("s", said("say it"))
    ask(talk, "s", say="Good morning, and welcome to all of you. How are you?")
    talk.run()
    assert talk.said["s"].end is not None
    assert talk.said["s"].end.status == "completed"
    np.testing.assert_allclose(talk.said["s"].wav, oracle.sound(talk.said["s"].text), atol=1e-4)


def test_a_written_reply_is_silent(omni: Omni):
    talk = Talk(omni.engine)
    talk.open("s", QUESTIONS[1])
    ask(talk, "s", speech=False)
    talk.run()
    assert talk.said["s"].text
    assert not talk.said["s"].audio
