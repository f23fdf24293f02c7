"""How much KV a conversation holds when it ends, as a workload's people have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from antiphon.assembly.footprint import TOKEN_PIXELS
from antiphon.core.errors import ConfigError
from antiphon.latency.features import AUDIO_TOKENS_PER_S
from antiphon.workload.draw import draw
from antiphon.workload.fitted import READ_ALOUD_WORDS_PER_S, TOKENS_PER_WORD
from antiphon.workload.script import PersonScript, TurnScript
from antiphon.workload.spec import Workload

MOST_DRAWN = 500
TURN_TOKENS = 10
"""Marks of who speaks, around a turn and its reply."""
USUAL_REPLY_TOKENS = 100
"""Where the workload leaves the length of replies to the server."""
FRAMES_PER_S = 12.5


@dataclass(frozen=True, slots=True)
class SessionSize:
    """Tokens of a conversation at its end, on average and of the ninth of ten. `speaking`: with its longest
    reply, in the stage that speaks, which keeps what people said and drops its replies."""

    mean: int
    p90: int
    speaking: int


def session_size(workload: Workload, seed: int = 0) -> SessionSize:
    """From scripts drawn as a run would. Raises ConfigError for a workload without people."""
    people = [one for one in islice(draw(workload, seed), MOST_DRAWN) if isinstance(one, PersonScript)]
    if not people:
        raise ConfigError(f"workload {workload.name!r} has no people whose conversations could be counted")
    whole = sorted(_words(person.instructions) + sum(map(_turn, person.turns)) for person in people)
    return SessionSize(
        mean=_mean(whole), p90=whole[len(whole) * 9 // 10], speaking=_mean([_spoken(one) for one in people])
    )


def _turn(turn: TurnScript) -> int:
    return _asked(turn) + _reply(turn)


def _asked(turn: TurnScript) -> int:
    pictures = sum(-(-picture.width * picture.height // TOKEN_PIXELS) for picture in turn.pictures)
    return TURN_TOKENS + round(turn.speech_s * AUDIO_TOKENS_PER_S) + _words(turn.text) + pictures


def _reply(turn: TurnScript) -> int:
    return turn.max_output_tokens or USUAL_REPLY_TOKENS


def _spoken(person: PersonScript) -> int:
    frames = FRAMES_PER_S / (READ_ALOUD_WORDS_PER_S * TOKENS_PER_WORD)
    longest = max((_reply(turn) for turn in person.turns if turn.wants == "speech"), default=0)
    return sum(map(_asked, person.turns)) + round(longest * frames)


def _words(text: str) -> int:
    return round(len(text.split()) * TOKENS_PER_WORD)


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))
