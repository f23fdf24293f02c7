"""Steps made up to measure a codec that reads text: replies that were rehearsed, each row anywhere in one.

What such a codec says in a step depends on all that it has read, and only its reports tell. So each reply is
spoken once, token by token: sound that begins while none is owed is a phrase that begins. Afterwards it is
known what every step of that reply brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from antiphon.core.facts import StepDone
from antiphon.core.plans import CodecStep, ints
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ
from antiphon.latency.features import SpeechFeatures
from antiphon.latency.profile import Reading
from antiphon.runtime.synthetic_steps import REASON, doublings, log_uniform

TEXTS = (
    "Yes, of course. The harbour is quiet in the morning, and the boats leave at noon.",
    "I think it will rain later today, so take a coat with you when you go out.",
    "That depends on what you would like to see, how far you want to walk, and who comes with you.",
    "Good question! Birds use their wings to push the air down and away from them.",
    "The capital of that country is a large city by the river, known for its old bridges.",
)
"""Replies as people are given them."""
MOST_STREAMS = 8
"""In a step: what more of them take follows from what these do."""
MOST_MOMENTS = 12
"""Of a reply, in which a row may be: it is brought there step by step."""
BEGINS_SHARE, READS_SHARE = 0.3, 0.15
"""Of the rows in drawn steps: those that begin a phrase, and those that only read."""


class Moment(NamedTuple):
    """A step of one stream: the tokens that it brings, and what is said in it."""

    tokens: tuple[int, ...]
    said: SpeechFeatures


class ReplyMoment(NamedTuple):
    """A moment of a rehearsed reply."""

    reply: int
    moment: int


SpeechMix = tuple[ReplyMoment, ...]
"""A step: where each row is. Row 0 and up."""


@dataclass(slots=True)
class _Phrase:
    """What a rehearsal heard: tokens up to the one with which a phrase began, and samples step by step."""

    tokens: list[int]
    samples: list[int]


class SpeechSynthesis:
    """Steps of one codec that reads text. `run` carries a step out and returns its report."""

    def __init__(
        self,
        stage: str,
        max_rows: int,
        replies: Sequence[Sequence[int]],
        run: Callable[[CodecStep], StepDone],
    ) -> None:
        """replies: tokens of each. They are rehearsed here, on row 0."""
        self.said = SpeechFeatures()
        """In the step that was made last."""
        self.rows = min(max_rows, MOST_STREAMS)
        self._stage = stage
        self._run = run
        self._number = count()
        self._at: dict[int, ReplyMoment] = {}
        heard = [self._rehearsed(tokens) for tokens in replies]
        self.reading = reading_of(heard)
        self._replies = [[*_moments(phrases)][:MOST_MOMENTS] for phrases in heard]

    def places(self, kind: str) -> list[ReplyMoment]:
        """Those in which a row `reads`, `begins` a phrase or `sounds` on, in every reply."""
        return [
            ReplyMoment(reply, i)
            for reply, moments in enumerate(self._replies)
            for i, moment in enumerate(moments)
            if _kind(moment) == kind
        ]

    def prepare(self, mix: SpeechMix) -> list[CodecStep]:
        """Steps after which `step(mix)` can be run."""
        steps: list[CodecStep] = []
        for row, place in enumerate(mix):
            at = self._at.get(row)
            if at is None or at.reply != place.reply or at.moment > place.moment:
                self._at[row] = ReplyMoment(place.reply, 0)
        while late := [row for row, place in enumerate(mix) if self._at[row] != place]:
            steps.append(self._next(late))
        return steps

    def step(self, mix: SpeechMix) -> CodecStep:
        return self._next(list(range(len(mix))))

    def leave(self) -> CodecStep:
        """Every stream is over."""
        rows = sorted(self._at)
        self._at = {}
        return self._made(rows, rows, [()] * len(rows), [1] * len(rows))

    def _next(self, rows: list[int]) -> CodecStep:
        """The next moment of these rows."""
        joins = [row for row in rows if not self._at[row].moment]
        moments = [self._replies[at.reply][at.moment] for at in (self._at[row] for row in rows)]
        self._at |= {row: ReplyMoment(self._at[row].reply, self._at[row].moment + 1) for row in rows}
        self.said = SpeechFeatures()
        for moment in moments:
            self.said = self.said.plus(moment.said)
        return self._made(joins, rows, [moment.tokens for moment in moments], [0] * len(rows))

    def _made(
        self, joins: list[int], rows: list[int], tokens: Sequence[Sequence[int]], ends: list[int]
    ) -> CodecStep:
        frames = np.array([token for one in tokens for token in one], np.int64).reshape(-1, 1)
        counts = ints([len(one) for one in tokens])
        number, voices = next(self._number), (None,) * len(rows)
        columns = ints(joins), ints(rows), ints(rows), counts, frames
        return CodecStep(self._stage, number, *columns, REASON, ints(ends), voices)

    def _rehearsed(self, tokens: Sequence[int]) -> list[_Phrase]:
        phrases: list[_Phrase] = []
        read: list[int] = []
        for i, token in enumerate(tokens):
            read.append(token)
            done = self._run(self._made([0] if not i else [], [0], [(token,)], [0]))
            if not int(done.samples.sum()):
                continue
            phrases.append(_Phrase(read, [int(done.samples.sum())]))
            read = []
            while len(done.owing):
                done = self._run(self._made([], [0], [()], [0]))
                phrases[-1].samples.append(int(done.samples.sum()))
        self._run(self._made([0], [0], [()], [1]))
        return phrases


def reading_of(heard: Sequence[Sequence[_Phrase]]) -> Reading:
    """How rehearsed replies were spoken; the rest of a reply that only its end makes a phrase is not among
    them."""
    firsts = [len(phrases[0].tokens) for phrases in heard if phrases]
    later = [len(phrase.tokens) for phrases in heard for phrase in phrases[1:]]
    every = [phrase for phrases in heard for phrase in phrases]
    assert every, "a reply has a phrase"
    samples, tokens = sum(sum(one.samples) for one in every), sum(len(one.tokens) for one in every)
    return Reading(
        first_tokens=round(float(np.mean(firsts))),
        phrase_tokens=round(float(np.mean(later or firsts))),
        token_samples=max(1, round(samples / tokens)),
        window_samples=max(max(one.samples) for one in every),
    )


def _moments(phrases: Sequence[_Phrase]) -> list[Moment]:
    """A step that reads all but the last token of a phrase, one that begins it, and those that it sounds on
    in."""
    moments: list[Moment] = []
    for phrase in phrases:
        *read, last = phrase.tokens
        if read or not moments:
            moments.append(Moment(tuple(read), SpeechFeatures(1)))
        first, *more = [samples / WIRE_SAMPLE_RATE_HZ for samples in phrase.samples]
        whole = sum(phrase.samples) / WIRE_SAMPLE_RATE_HZ
        moments.append(Moment((last,), SpeechFeatures(1, 1, whole, 1, first)))
        moments += [Moment((), SpeechFeatures(1, 0, 0.0, 1, seconds)) for seconds in more]
    return moments


def _kind(moment: Moment) -> str:
    if moment.said.phrases:
        return "begins"
    return "sounds" if moment.said.windows else "reads"


def speaking(craft: SpeechSynthesis, rng: np.random.Generator) -> list[SpeechMix]:
    """Rows that do alike, over their number."""
    mixes: list[SpeechMix] = []
    for kind in ("reads", "begins", "sounds"):
        places = craft.places(kind)
        if places:
            mixes += [_drawn(places, rows, rng) for rows in doublings(craft.rows)]
    return mixes


def drawn_speaking(craft: SpeechSynthesis, rng: np.random.Generator) -> SpeechMix:
    """A step as they come: most rows sound on, some begin a phrase, some only read."""
    rows = log_uniform(rng, 1, craft.rows + 1)
    mix: list[ReplyMoment] = []
    for _ in range(rows):
        draw = rng.random()
        kind = "begins" if draw < BEGINS_SHARE else "reads" if draw < BEGINS_SHARE + READS_SHARE else "sounds"
        mix += _drawn(craft.places(kind) or craft.places("begins"), 1, rng)
    return tuple(mix)


def _drawn(places: Sequence[ReplyMoment], rows: int, rng: np.random.Generator) -> SpeechMix:
    return tuple(places[int(rng.integers(len(places)))] for _ in range(rows))
