"""People do anything, at any time, to a node whose pools are too small: every law holds all the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon.core.config import Unit
from antiphon.core.conversation import Item, Part, TextPart
from antiphon.core.facts import (
    ItemAdded,
    ItemCut,
    ItemRemoved,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechStarted,
)
from antiphon.core.sampling import Sampling
from fakes import toy
from fakes.machine import Turning
from fakes.whims import whims_of
from fakes.world import HURRIED, World, toy_config

LONG = "please listen to all of what is said here before you say anything at all"
"""A beginning that fills blocks, so that sessions have some to share."""

words = ["hi", "one two three", "tell me more", "what is that over there", "yes", "why not"]
texts = st.sampled_from(words)
media = st.sampled_from([toy.tone(1), toy.tone(2), toy.tone(3), toy.picture(1)])
part_lists = st.lists(st.one_of(texts.map(TextPart), media), min_size=1, max_size=3)
limits = st.one_of(st.none(), st.integers(1, 20))
options = st.fixed_dictionaries(
    {
        "speech": st.booleans(),
        "remember": st.booleans(),
        "codes": st.booleans(),
        "voice": st.sampled_from([None, "ada"]),
        "instructions": st.sampled_from(["", "be brief"]),
        "max_tokens": limits,
        "retention": st.sampled_from([None, 0.5, 1.0]),
        "tools": st.sampled_from([(), ("a tool",)]),
        "tool_choice": st.sampled_from(["auto", "auto", "none", "required"]),
        "tier": st.sampled_from(["latency", "latency", "best_effort"]),
    }
)
SEEDED = {"thinker": Sampling(max_tokens=6, seed=1), "talker": Sampling(max_tokens=1, seed=2)}


APART = tuple(Unit(name, name, process=name) for name in ("encoders", "thinker", "talker", "code2wav"))
TWICE = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a"),
    Unit("thinker.1", "thinker", "b"),
    Unit("talker.0", "talker", "c"),
    Unit("talker.1", "talker", "d"),
    Unit("code2wav.0", "code2wav", "c"),
    Unit("code2wav.1", "code2wav", "d"),
)
FLEET = (
    Unit("encoders.0", "encoders", process="a"),
    Unit("encoders.1", "encoders", process="b"),
    Unit("thinker.0", "thinker", process="a"),
    Unit("thinker.1", "thinker", process="c"),
    Unit("talker.0", "talker", process="d"),
    Unit("talker.1", "talker", process="b"),
    Unit("code2wav", "code2wav", process="d"),
)
SPLIT = (
    Unit("encoders", "encoders", process="a"),
    Unit("thinker.0", "thinker", process="a", role="prefill"),
    Unit("thinker.1", "thinker", process="b", role="decode"),
    Unit("talker", "talker", process="c"),
    Unit("code2wav", "code2wav", process="c"),
)
SPLIT_TWICE = (
    Unit("encoders.0", "encoders", process="e"),
    Unit("encoders.1", "encoders", process="c"),
    Unit("thinker.0", "thinker", process="a", role="prefill"),
    Unit("thinker.1", "thinker", process="b", role="prefill"),
    Unit("thinker.2", "thinker", process="c", role="decode"),
    Unit("thinker.3", "thinker", process="d", role="decode"),
    Unit("talker", "talker", "x", process="c"),
    Unit("code2wav", "code2wav", process="d"),
)
SPLIT_HERE = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a", role="prefill"),
    Unit("thinker.1", "thinker", "b", role="decode"),
    Unit("talker", "talker", "b"),
    Unit("code2wav", "code2wav", "b"),
)


class People(Turning):
    """Sessions come, talk, interrupt and go; steps fail; the node is turned between."""

    preset = "baseline"

    @initialize(
        depth=st.integers(0, 1),
        lags=st.booleans(),
        rows=st.integers(1, 4),
        blocks=st.sampled_from([12, 24, 48]),
        step_tokens=st.sampled_from([1, 5, 40]),
        media=st.integers(1, 3),
        speaks=st.sampled_from([True, True, True, False]),
        context=st.sampled_from([None, None, 12, 40]),
        is_vague=st.booleans(),
        units=st.sampled_from([(), (), APART, TWICE, FLEET, SPLIT, SPLIT_TWICE, SPLIT_HERE]),
        host_blocks=st.sampled_from([0, 3, 10, 60]),
        copy_lag=st.integers(0, 3),
        layer_groups=st.sampled_from([(), (("low", 0, 1), ("high", 1, 2))]),
    )
    def begin(
        self,
        depth: int,
        lags: bool,
        is_vague: bool,
        copy_lag: int,
        units: tuple[Unit, ...],
        speaks: bool,
        **sizes: Any,
    ) -> None:
        units = tuple(unit for unit in units if speaks or unit.stage in ("encoders", "thinker"))
        config = toy_config(units=units, speaks=speaks, preset=self.preset, **sizes)
        self.world = World(config, depth, lags=lags, copy_lag=copy_lag)
        self.whims = {name: whims_of(scheduler) for name, scheduler in self.world.node.stages.ar.items()}
        for device in self.world.fleet.devices.values():
            device.is_vague = is_vague
        self.sessions: list[str] = []
        self.items: dict[str, list[str]] = {}
        self.count = 0

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def _add(self, session: str, role: Any, parts: list[Part], after: str | None) -> None:
        item = Item(self._name("item"), role, tuple(parts))
        self.items[session].append(item.id)
        self.world.send(ItemAdded(session, item, after))

    @rule(parts=part_lists)
    def open(self, parts: list[Part]) -> None:
        session = self._name("session")
        self.sessions.append(session)
        self.items[session] = []
        self.world.send(SessionOpened(session))
        self._add(session, "user", parts, None)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), parts=part_lists, system=st.booleans())
    def say(self, data: st.DataObject, parts: list[Part], system: bool) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        after = data.draw(st.sampled_from([None, None, "root", "unknown", *self.items[session]]))
        if system:
            self._add(session, "system", [TextPart("be kind")], after)
        else:
            self._add(session, "user", parts, after)

    @precondition(lambda self: any(self.items.get(session) for session in self.sessions))
    @rule(data=st.data())
    def unsay(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([session for session in self.sessions if self.items[session]]))
        item = data.draw(st.sampled_from(self.items[session]))
        self.items[session].remove(item)
        self.world.send(ItemRemoved(session, item))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), options=options, inline=st.one_of(st.none(), part_lists), seeded=st.booleans())
    def ask(self, data: st.DataObject, options: Any, inline: list[Part] | None, seeded: bool) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        response = self._name("response")
        items = None if inline is None else (Item("inline", "user", tuple(inline)),)
        sampling = SEEDED if seeded else {}
        self.items[session].append(f"reply-{response}")
        self.world.send(
            ResponseRequested(
                session, response, f"reply-{response}", items=items, sampling=sampling, **options
            )
        )

    @precondition(lambda self: self.world.responses)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        session, response = data.draw(st.sampled_from(sorted(self.world.responses)))
        keep = data.draw(st.none() | st.integers(0, 5))
        self.world.send(ResponseCancelled(session, response, keep_tokens=keep))

    @precondition(lambda self: self.world.responses)
    @rule(data=st.data(), keep=st.integers(0, 5))
    def cut(self, data: st.DataObject, keep: int) -> None:
        """Of a reply, whether it is over or not, only so much was heard."""
        session, response = data.draw(st.sampled_from(sorted(self.world.responses)))
        self.world.send(SpeechStarted(session), ItemCut(session, f"reply-{response}", keep))

    @rule(parts=part_lists, speech=st.booleans(), count=st.integers(1, 3))
    def meet(self, parts: list[Part], speech: bool, count: int) -> None:
        """Several people ask the same at once."""
        for _ in range(count):
            self.open(parts)
            name = self._name("response")
            self.world.send(ResponseRequested(self.sessions[-1], name, f"reply-{name}", speech=speech))

    @rule(parts=part_lists, others=st.lists(media, max_size=2), count=st.integers(1, 3))
    def meet_after_the_same_words(self, parts: list[Part], others: list[Part], count: int) -> None:
        """Conversations that begin alike, media included, and then part."""
        for number in range(count):
            self.open([TextPart(LONG), *others])
            self._add(self.sessions[-1], "user", [TextPart(f"number {number}"), *parts], None)
            name = self._name("response")
            self.world.send(ResponseRequested(self.sessions[-1], name, f"reply-{name}"))

    @rule(
        unit=st.integers(0, 3),
        victims=st.lists(st.integers(0, 3), min_size=1, max_size=3),
        count=st.integers(1, 6),
    )
    def preempt(self, unit: int, victims: list[int], count: int) -> None:
        """Rows are given up, whatever they were doing."""
        names = list(self.whims)
        self.whims[names[unit % len(names)]].victims = victims
        self.world.node.stages.reopen()  # the policy has changed its mind
        self.turn(count)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), text=texts)
    def go_on(self, data: st.DataObject, text: str) -> None:
        """The next turn of a conversation."""
        session = data.draw(st.sampled_from(self.sessions))
        self._add(session, "user", [TextPart(text)], None)
        name = self._name("response")
        self.world.send(ResponseRequested(session, name, f"reply-{name}"))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def mumble(self, data: st.DataObject) -> None:
        """A prompt that can't be rendered."""
        session = data.draw(st.sampled_from(self.sessions))
        items = (Item("inline", "user", (TextPart(toy.UNSPEAKABLE),)),)
        self.world.send(ResponseRequested(session, self._name("response"), "none", items=items))

    @precondition(lambda self: len(self.sessions) > 3)
    @rule(data=st.data(), keeps_kv=st.booleans())
    def leave(self, data: st.DataObject, keeps_kv: bool) -> None:
        session = data.draw(st.sampled_from(self.sessions))
        self.sessions.remove(session)
        self.world.send(SessionClosed(session, keeps_kv))

    @rule(others=st.lists(media, max_size=2), salt=st.sampled_from(["", "", "salt"]), count=st.integers(1, 4))
    def ask_by_the_way(self, others: list[Part], salt: str, count: int) -> None:
        """Sessions of one request each, that leave their KV as cache; the next one begins alike."""
        for number in range(count):
            session, name = self._name("session"), self._name("response")
            items = (Item("all", "user", (TextPart(LONG), *others, TextPart(f"number {number}"))),)
            asked = ResponseRequested(
                session, name, f"reply-{name}", remember=False, items=items, cache_salt=salt
            )
            self.world.send(SessionOpened(session), asked)
            self.turn(number * 9)
            self.world.send(SessionClosed(session, keeps_kv=True))

    @rule(unit=st.integers(0, 7), count=st.integers(1, 9))
    def fail(self, unit: int, count: int) -> None:
        """A step of this unit fails, if there is one in the next few turns."""
        names = list(self.world.fleet.units)
        name = names[unit % len(names)]
        place = self.world.fleet.units[name]
        failing = self.world.fleet.devices[place.process, place.device].failing
        failing.add(name)
        self.turn(count)
        failing.discard(name)

    @precondition(lambda self: any(unit.process for unit in self.world.fleet.units.values()))
    @rule(unit=st.integers(0, 7))
    def kill(self, unit: int) -> None:
        """A process dies, with all that lives in it, and starts again."""
        places = list(self.world.fleet.units.values())
        self.world.kill(places[unit % len(places)].process)
        self.whims = {name: whims_of(ar) for name, ar in self.world.node.stages.ar.items()}

    @property
    def open_sessions(self) -> list[str]:
        return self.sessions


def live(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        report_multiple_bugs=False,
    )


class Listened(People):
    """The same, by what people hear."""

    preset = HURRIED


@pytest.mark.timeout(600)
def test_people_do_anything_and_what_they_hear_decides() -> None:
    run_state_machine_as_test(Listened, settings=live(8, 50))


@pytest.mark.timeout(600)
def test_people_do_anything() -> None:
    run_state_machine_as_test(People, settings=live(24, 50))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("people", "examples"), [(People, 400), (Listened, 100)])
def test_people_do_anything_for_long(people: type[People], examples: int) -> None:
    run_state_machine_as_test(people, settings=live(examples, 250))


def test_requests_that_wait_for_media_on_their_way_do_not_stand_still() -> None:
    """Copies between units break off, so that the decoding unit has to read a prompt, and needs its media."""
    people = Listened()
    sizes = {"rows": 1, "blocks": 12, "step_tokens": 40, "media": 1, "host_blocks": 0, "context": None}
    people.begin(depth=0, lags=False, is_vague=False, copy_lag=0, speaks=True, units=SPLIT, **sizes)
    people.open([TextPart(LONG)])
    for part in (toy.tone(1), TextPart("hi")):
        people._add("session1", "user", [part], None)
        name = people._name("response")
        people.world.send(ResponseRequested("session1", name, f"reply-{name}"))
    people.break_copies(copies=3, count=6)
    people.teardown()


def test_room_that_costs_what_a_prompt_begins_with_is_made_again() -> None:
    """KV moves to a unit where the prompt's beginning rests, and goes for the rest of it: it needs more room
    then, and nothing else is going on that would have anybody look again."""
    people = People()
    sizes = {"rows": 1, "blocks": 12, "step_tokens": 1, "media": 1, "host_blocks": 0, "context": None}
    people.begin(depth=0, lags=False, is_vague=False, copy_lag=0, speaks=False, units=SPLIT_TWICE, **sizes)
    tone, hi, there = toy.tone(1), TextPart("hi"), TextPart("what is that over there")
    people.meet_after_the_same_words(parts=[hi, there], others=[tone], count=2)
    people.meet_after_the_same_words(parts=[hi, hi], others=[tone, tone], count=2)
    people.meet_after_the_same_words(parts=[hi], others=[], count=1)
    people.rest()
    people.meet_after_the_same_words(parts=[hi], others=[], count=1)
    people.rest()
    people.teardown()
