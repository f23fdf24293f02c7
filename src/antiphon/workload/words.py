"""Readable text of a given number of words: what people type to an assistant, and passages for jobs."""

from __future__ import annotations

from antiphon.workload.laws import Rng

PLACES = (
    "Lisbon",
    "the kitchen",
    "Oslo",
    "my office",
    "the garden",
    "Nairobi",
    "the harbour",
    "Kyoto",
    "the library",
)
DAYS = ("today", "tomorrow", "on Monday", "this evening", "next week", "at noon", "on Friday morning")
THINGS = (
    "the train times",
    "a good recipe",
    "my next meeting",
    "the news",
    "a short story",
    "the shopping list",
)
PEOPLE = ("my sister", "the landlord", "Amina", "Doctor Weiss", "the whole team", "my neighbour", "Tomas")

OPENERS = (
    "stop",
    "go on",
    "what next",
    "read it again",
    "is it raining {day}",
    "set a timer please",
    "tell me about {thing}",
    "call {person} {day}",
    "how warm is it in {place}",
    "remind me {day} to water the plants",
    "what should I cook for {person} {day}",
    "can you find {thing} for {place} {day}",
    "write a message to {person} about {thing}",
    "how long does it take to get to {place} {day}",
    "explain in simple words how {thing} came to be so useful",
    "what would you say to {person} if they asked about {thing}",
)
JOINTS = ("and then", "and also", "but first", "after that", "and if you can")
TAILS = (
    "please",
    "right now",
    "in simple words",
    "as short as possible",
    "so that I can remember it",
    "because I have to leave soon",
    "before {person} comes home {day}",
)


def request(words: int, rng: Rng) -> str:
    """A request of exactly this many words (at least one), as somebody would type it."""
    said = _fitting(OPENERS, words, rng)
    while len(said) < words:
        left = words - len(said)
        if left > 7:
            said += [*_filled(_any(JOINTS, rng), rng), *_filled(_any(OPENERS[4:], rng), rng)]
        else:
            said += _fitting(TAILS, left, rng)
        said = said[:words]
    return " ".join(said)


def passage(words: int, rng: Rng) -> str:
    """Sentences, of exactly this many words in all."""
    sentences: list[str] = []
    left = words
    while left > 0:
        length = min(left, 6 + int(rng.integers(12)))
        sentences.append(request(length, rng).capitalize() + ".")
        left -= length
    return " ".join(sentences)


def _fitting(templates: tuple[str, ...], words: int, rng: Rng) -> list[str]:
    """One of the longest templates that have at most so many words once filled in."""
    filled = [_filled(template, rng) for template in templates]
    fitting = [said for said in filled if len(said) <= words]
    longest = max(len(said) for said in fitting)
    near = [said for said in fitting if len(said) >= longest - 1]
    return near[int(rng.integers(len(near)))]


def _filled(template: str, rng: Rng) -> list[str]:
    return template.format(
        place=_any(PLACES, rng), day=_any(DAYS, rng), thing=_any(THINGS, rng), person=_any(PEOPLE, rng)
    ).split()


def _any(choices: tuple[str, ...], rng: Rng) -> str:
    return choices[int(rng.integers(len(choices)))]
