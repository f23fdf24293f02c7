"""A person's script: the turns of a session, each by its group's laws or as its trace has it."""

from __future__ import annotations

from itertools import repeat

from antiphon.core.rng import stream
from antiphon.workload import words
from antiphon.workload.dialogue import Dialogue, Overlaps, Pauses
from antiphon.workload.fitted import TOKENS_PER_WORD
from antiphon.workload.laws import Law, Rng
from antiphon.workload.script import Acks, Clip, Interjection, PersonScript, Picture, TurnScript, Voiced
from antiphon.workload.trace_rows import TraceSession, TraceTurn

MIN_SPEECH_S = 0.1
"""Nobody says anything shorter."""

UNSAID = TraceTurn(think_s=None, user_tokens=None, output_tokens=None)
"""A turn of which a trace says nothing: all of it is drawn."""


class Dice:
    """The random streams of one session: one for each quantity, and for each turn of it."""

    def __init__(self, seed: int, source: str, index: int) -> None:
        self._seed = seed
        self._names = (source, str(index))

    def of(self, quantity: str, turn: int = 0) -> Rng:
        return stream(self._seed, quantity, *self._names, str(turn))

    def draw(self, quantity: str, law: Law, turn: int = 0) -> float:
        return law.draw(self.of(quantity, turn))

    def whole(self, quantity: str, law: Law, turn: int = 0) -> int:
        """Rounded, at least 1."""
        return max(1, round(self.draw(quantity, law, turn)))

    def chance(self, quantity: str, probability: float, turn: int = 0) -> bool:
        return float(self.of(quantity, turn).random()) < probability

    def passage(self, num_words: int, turn: int) -> str:
        return words.passage(num_words, self.of("passage", turn))


def person(
    name: str, group: Dialogue, arrival_s: float, dice: Dice, trace: TraceSession | None = None
) -> PersonScript:
    """One session. With a trace, number of turns, thinking and lengths are its own where it says them."""
    told = trace.turns if trace else ()
    if trace is None or not trace.is_whole:
        num_turns = dice.whole("turns", group.turns)
        told = (*told, *repeat(UNSAID, num_turns))[:num_turns]
    return PersonScript(
        name=name,
        arrival_s=arrival_s,
        seed=int(dice.of("voice").integers(2**31)),
        turns=tuple(turn(group, dice, index, as_told) for index, as_told in enumerate(told)),
        acks=acks(group, dice),
        reading_tokens_per_s=max(0.1, dice.draw("reading", group.reading_tokens_per_s)),
        instructions=group.instructions,
        tells_rate=group.tells_rate,
    )


def acks(group: Dialogue, dice: Dice) -> Acks | None:
    law = group.acks
    if law is None or not dice.chance("acks", law.share):
        return None
    return Acks(law.interval_s, law.jitter_s, law.loss)


def turn(group: Dialogue, dice: Dice, index: int, told: TraceTurn = UNSAID) -> TurnScript:
    """The turn with this index. `told`: what a trace says of it."""
    is_typed = dice.chance("typed", group.typed, index)
    wants = ("text" if is_typed else "speech") if group.replies == "same" else group.replies
    text, typing_s = typed(group, dice, index, told) if is_typed else ("", 0.0)
    return TurnScript(
        think_s=think_s(group, dice, index, told),
        voice=() if is_typed else voice(group, dice, index, told),
        text=text,
        typing_s=typing_s,
        pictures=pictures(group, dice, index),
        clips=clips(group, dice, index),
        wants=wants,
        max_output_tokens=max_output_tokens(group, dice, index, told),
        interjections=interjections(group, dice, index) if wants == "speech" else (),
    )


def think_s(group: Dialogue, dice: Dice, index: int, told: TraceTurn) -> float:
    if index and told.think_s is not None:
        return told.think_s
    return dice.draw("think", group.think_s if index else group.first_think_s, index)


def voice(group: Dialogue, dice: Dice, index: int, told: TraceTurn) -> tuple[Voiced, ...]:
    """What is said, with its pauses."""
    law = group.speech
    if told.speech_s is not None:
        speech_s = told.speech_s
    elif law.seconds is not None and told.user_tokens is None:
        speech_s = dice.draw("speech", law.seconds, index)
    else:
        num_words = told_words(told) or dice.whole("words", law.words, index)
        speech_s = num_words / max(0.1, dice.draw("speaking", law.words_per_s, index))
    speech_s = max(MIN_SPEECH_S, min(law.max_s, speech_s))
    if law.pauses is None:
        return (Voiced(speech_s),)
    return stretches(speech_s, law.pauses, dice.of("stretches", index), dice.of("pauses", index))


def stretches(speech_s: float, law: Pauses, lengths: Rng, silences: Rng) -> tuple[Voiced, ...]:
    """`speech_s` of voice in stretches with pauses between, none after the last."""
    parts: list[Voiced] = []
    left_s = speech_s
    while (length_s := max(MIN_SPEECH_S, law.stretch_s.draw(lengths))) < left_s - MIN_SPEECH_S:
        parts.append(Voiced(length_s, law.pause_s.draw(silences)))
        left_s -= length_s
    return (*parts, Voiced(left_s))


def typed(group: Dialogue, dice: Dice, index: int, told: TraceTurn) -> tuple[str, float]:
    """The words, and the seconds it takes to type them."""
    if told.text:
        text = told.text
    else:
        num_words = told_words(told) or dice.whole("words", group.typing.words, index)
        text = words.request(num_words, dice.of("text", index))
    words_per_s = dice.draw("typing", group.typing.words_per_s)
    return text, min(group.typing.max_s, len(text.split()) / words_per_s) if words_per_s else 0.0


def told_words(told: TraceTurn) -> int | None:
    """Words of a trace's turn (1.3 tokens a word)."""
    return None if told.user_tokens is None else max(1, round(told.user_tokens / TOKENS_PER_WORD))


def pictures(group: Dialogue, dice: Dice, index: int) -> tuple[Picture, ...]:
    law = group.pictures
    if law is None or not dice.chance("pictured", law.probability, index):
        return ()
    rng = dice.of("picture_sizes", index)
    sizes = rng.integers(len(law.sizes), size=dice.whole("pictures", law.count, index))
    return tuple(Picture(*law.sizes[int(size)]) for size in sizes)


def clips(group: Dialogue, dice: Dice, index: int) -> tuple[Clip, ...]:
    law = group.clips
    if law is None or not dice.chance("clipped", law.probability, index):
        return ()
    num = dice.whole("clips", law.count, index)
    sizes = dice.of("clip_sizes", index).integers(len(law.sizes), size=num)
    seeds = dice.of("clip_seeds", index).integers(2**31, size=num)
    lengths = dice.of("clip_lengths", index)
    seconds = [max(0.0, min(law.max_s, law.seconds.draw(lengths))) for _ in range(num)]
    return tuple(
        Clip(*law.sizes[int(size)], max(1, round(length_s * law.fps)), law.fps, int(seed))
        for size, length_s, seed in zip(sizes, seconds, seeds, strict=True)
    )


def max_output_tokens(group: Dialogue, dice: Dice, index: int, told: TraceTurn) -> int | None:
    if told.output_tokens is not None:
        return max(1, told.output_tokens)
    return None if group.max_output_tokens is None else dice.whole("output", group.max_output_tokens, index)


def interjections(group: Dialogue, dice: Dice, index: int) -> tuple[Interjection, ...]:
    """What is said over the reply, in order: a person says one thing at a time, and a barge-in is the last.

    LiveServe §7.1: each reply is cut with probability p_bi, at a time anchored at its first audio and drawn
    from the durations of replies.
    """
    said = [
        *overlaps("backchannel", group.backchannels, group.reply_s, dice, index),
        *overlaps("failed_barge_in", group.failed_barge_ins, group.reply_s, dice, index),
    ]
    law = group.barge_in
    cut_s = float("inf")
    last: tuple[Interjection, ...] = ()
    if dice.chance("barge_in", law.probability, index):
        cut_s = dice.draw("barge_in_at", group.reply_s, index)
        speech_s = max(MIN_SPEECH_S, dice.draw("barge_in_speech", law.speech_s, index))
        last = (Interjection("barge_in", cut_s, speech_s),)
    free_s, kept = 0.0, list[Interjection]()
    for one in sorted(said, key=lambda one: one.after_s):
        if one.after_s >= free_s and one.after_s + one.speech_s < cut_s:
            kept.append(one)
            free_s = one.after_s + one.speech_s
    return (*kept, *last)


def overlaps(kind: str, law: Overlaps, reply_s: Law, dice: Dice, index: int) -> list[Interjection]:
    """Poisson in number, anywhere in a reply of drawn length."""
    num = int(dice.of(f"{kind}_count", index).poisson(law.per_reply))
    at, length = dice.of(f"{kind}_at", index), dice.of(f"{kind}_speech", index)
    made = "backchannel" if kind == "backchannel" else "failed_barge_in"
    return [
        Interjection(
            made, float(at.random()) * reply_s.draw(at), max(MIN_SPEECH_S, law.speech_s.draw(length))
        )
        for _ in range(num)
    ]
