"""Scripts of facts for parity: people who ask, interrupt, cut, cancel and leave, at drawn times."""

from __future__ import annotations

from antiphon.core.conversation import Item, Part, TextPart
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ItemCut,
    PlaybackReported,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
)
from antiphon.core.rng import stream
from fakes import toy


def drawn_script(seed: int, num_sessions: int = 4, num_turns: int = 4) -> list[tuple[float, Fact]]:
    """In order of time."""
    script: list[tuple[float, Fact]] = []
    for number in range(num_sessions):
        script += _session(seed, f"s{number}", num_turns)
    return sorted(script, key=lambda entry: entry[0])


def advised(script: list[tuple[float, Fact]], ahead_s: float = 0.2) -> list[tuple[float, Fact]]:
    """The same, where every reply is asked for later, and its turn advised at the old time."""
    told: list[tuple[float, Fact]] = []
    for at_s, fact in script:
        if isinstance(fact, ResponseRequested):
            told.append((at_s, TurnAdvised(fact.session, "turn", reply=fact)))
        is_later = isinstance(fact, ResponseRequested | ResponseCancelled | ItemCut)
        told.append((at_s + ahead_s if is_later else at_s, fact))
    return sorted(told, key=lambda entry: entry[0])


def _session(seed: int, name: str, num_turns: int) -> list[tuple[float, Fact]]:
    rng = stream(seed, name)
    at_s = float(rng.uniform(0.0, 0.2))
    script: list[tuple[float, Fact]] = [(at_s, SessionOpened(name))]
    for turn in range(num_turns):
        at_s += float(rng.uniform(0.0, 0.4))
        response, reply = f"{name}-r{turn}", f"{name}-a{turn}"
        parts: list[Part] = [TextPart(f"word {turn} " * int(rng.integers(1, 4)))]
        if rng.random() < 0.5:
            parts.append(toy.tone(int(rng.integers(6))))
        script += [
            (at_s, SpeechStarted(name)),
            (at_s, SpeechEnded(name)),
            (at_s, ItemAdded(name, Item(f"{name}-q{turn}", "user", tuple(parts)))),
            (at_s, ResponseRequested(name, response, reply, speech=bool(rng.random() < 0.8))),
        ]
        script += _aftermath(rng.random(), float(rng.uniform(0.0, 0.3)) + at_s, (name, response, reply))
    if rng.random() < 0.5:
        script.append((at_s + float(rng.uniform(0.0, 0.5)), SessionClosed(name)))
    return script


def _aftermath(die: float, at_s: float, names: tuple[str, str, str]) -> list[tuple[float, Fact]]:
    name, response, reply = names
    if die < 0.25:
        return [(at_s, ResponseCancelled(name, response, "turn_detected", 2))]
    if die < 0.4:
        return [(at_s, ItemCut(name, reply, 1))]
    if die < 0.6:
        return [(at_s, PlaybackReported(name, response, 0.1))]
    return []
