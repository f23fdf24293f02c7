"""What turn-taking finds in a stream of speech. Times are milliseconds of audio since its beginning."""

from __future__ import annotations

import msgspec


class TurnStarted(msgspec.Struct, frozen=True, tag=True):
    """The person took the turn. The turn's audio begins at `audio_start_ms`, padding included."""

    audio_start_ms: int


class TurnPaused(msgspec.Struct, frozen=True, tag=True):
    """The person has paused. If the turn ends in this pause, all that is said lies before `said_end_ms`,
    unless another pause is told before it ends."""

    said_end_ms: int


class TurnContinued(msgspec.Struct, frozen=True, tag=True):
    """The person has spoken for a while, and no pause of it was told. The turn so far ends at `so_far_ms`."""

    so_far_ms: int


class TurnStopped(msgspec.Struct, frozen=True, tag=True):
    """The person's turn is over. Its audio ends at `audio_end_ms`, the silence that told so included.

    said_end_ms  of the pause that it ended in; None: it ended before a pause was told
    """

    audio_end_ms: int
    said_end_ms: int | None = None


class ReplyPaused(msgspec.Struct, frozen=True, tag=True):
    """There is a voice over the reply, which may be an interruption or only an "uh-huh": hold the reply."""


class ReplyResumed(msgspec.Struct, frozen=True, tag=True):
    """It was no interruption: go on with the reply, and forget the voice."""


TurnEvent = TurnStarted | TurnPaused | TurnContinued | TurnStopped | ReplyPaused | ReplyResumed
