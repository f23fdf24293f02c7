"""How people talk, type, listen and interrupt: the laws of one group of people."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from antiphon.workload.fitted import SPOKEN_WORDS_PER_S
from antiphon.workload.laws import (
    Choice,
    Constant,
    Count,
    Fitted,
    Law,
    NotNegative,
    Positive,
    Probability,
    Spec,
    Uniform,
    Weighted,
)

PHONE_OR_KEYBOARD = Choice(choice=Weighted(values=(0.603, 0.867)))
"""Typing, words a second: 36.2 words a minute on a phone (Palin et al. 2019), about 52 on a keyboard."""


class Pauses(Spec):
    """Breaks inside a spoken turn: after each stretch of about `stretch_s`, silence of `pause_s`."""

    stretch_s: Law
    pause_s: Law


class Speech(Spec):
    """Spoken turns: `seconds`, or `words` at `words_per_s` (for a trace, its words at that rate); longer than
    `max_s` becomes that."""

    seconds: Law | None = None
    words: Law = Fitted(fitted="slurp_words")
    words_per_s: Law = Constant(constant=SPOKEN_WORDS_PER_S)
    pauses: Pauses | None = None
    max_s: Positive = 60.0


class Typing(Spec):
    """Typed turns; what would take longer than `max_s` takes that (partly pasted), and where `words_per_s`
    draws 0 the text is there at once."""

    words: Law = Fitted(fitted="slurp_words")
    words_per_s: Law = PHONE_OR_KEYBOARD
    max_s: Positive = 60.0


class Pictures(Spec):
    """Images shown with a turn: with `probability`, `count` of them, each of one of the `sizes` in pixels."""

    probability: Probability = 1.0
    count: Law = Constant(constant=1)
    sizes: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1)] = ((640, 480),)


class Clips(Spec):
    """Silent videos shown with a turn: with `probability`, `count` of them, each `seconds` long (longer than
    `max_s` becomes that: the end of it is shown), at one of the `sizes` in pixels, `fps` frames a second."""

    probability: Probability = 1.0
    count: Law = Constant(constant=1)
    seconds: Law = Fitted(fitted="streamingbench_clip_s")
    max_s: Positive = 60.0
    fps: Annotated[float, Field(ge=0.01, le=30.0)] = 0.25
    sizes: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1)] = ((160, 120),)


class BargeIn(Spec):
    """With `probability` per reply the person takes the turn (LiveServe §7.1: p_bi).

    The cut is anchored at the reply's first audio and drawn from the group's `reply_s`; where the reply is
    over by then, nothing happens. `speech_s` is how long the person says what stops the reply; the next turn,
    if there is one, follows at once.
    """

    probability: Probability = 0.0
    speech_s: Law = Uniform(uniform=(0.4, 1.0))


class Overlaps(Spec):
    """Voice over a reply that doesn't take the turn: on average `per_reply` of it (Poisson), anywhere within
    a draw of the group's `reply_s`."""

    per_reply: NotNegative
    speech_s: Law = Fitted(fitted="ami_overlap_s")


class Acking(Spec):
    """Reports of playback. `share` of the people's clients send them, the others never do."""

    share: Probability = 1.0
    interval_s: Positive = 0.2
    jitter_s: NotNegative = 0.0
    loss: Probability = 0.0


class Dialogue(Spec):
    """A group of people and the laws by which each of them behaves.

    share                 weight among the groups that share the load's arrivals
    turns                 per session, rounded, at least 1
    typed                 probability that a turn is typed and not spoken
    think_s               from the end of the reply's playback (or reading) to the next turn
    first_think_s         the same before the first turn, from the session's start
    replies               wanted modality; `same` answers speech with speech and text with text
    max_output_tokens     of each reply's text; rounded, at least 1
    reply_s               how long replies are supposed to last: places interruptions, limits nothing
    reading_tokens_per_s  how fast a person reads text replies
    tells_rate            a simulated client says so with each request
    """

    share: NotNegative = 1.0
    turns: Law = Fitted(fitted="burstgpt_turns")
    typed: Probability = 0.0
    speech: Speech = Speech()
    typing: Typing = Typing()
    pictures: Pictures | None = None
    clips: Clips | None = None
    think_s: Law = Fitted(fitted="ami_gap_s")
    first_think_s: Law = Constant(constant=0)
    replies: Literal["speech", "text", "same"] = "same"
    max_output_tokens: Law | None = None
    reply_s: Law = Fitted(fitted="burstgpt_output_reply_s")
    barge_in: BargeIn = BargeIn()
    backchannels: Overlaps = Overlaps(per_reply=0.0)
    failed_barge_ins: Overlaps = Overlaps(per_reply=0.0)
    acks: Acking | None = Acking()
    reading_tokens_per_s: Law = Uniform(uniform=(3.8, 6.5))
    tells_rate: bool = False
    instructions: str = ""

    @property
    def speaks(self) -> bool:
        """Any of their turns are spoken."""
        return self.typed < 1

    @property
    def listens(self) -> bool:
        """Any of the replies that they want are spoken."""
        return self.replies == "speech" or (self.replies == "same" and self.speaks)

    @property
    def shows(self) -> bool:
        """Any of their turns come with pictures or clips."""
        return any(law is not None and law.probability > 0 for law in (self.pictures, self.clips))

    @model_validator(mode="after")
    def check(self) -> Self:
        if self.barge_in.probability and self.replies == "text":
            raise ValueError("barge_in needs audible replies; these people want text")
        return self
