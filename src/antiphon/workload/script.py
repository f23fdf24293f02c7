"""What a person (or a job) is going to do, drawn before the run: the same script is played to every server.

All times are seconds. Nothing here depends on how fast a server answers: what happens after an answer is
anchored at that answer (its first audio, the end of its playback).
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Voiced(msgspec.Struct, frozen=True):
    """A stretch of voice and the pause after it, inside one turn."""

    speech_s: float
    pause_s: float = 0.0


class Interjection(msgspec.Struct, frozen=True):
    """What a person says while the reply is audible.

    after_s   from the first audio of the reply, in the listener's time
    speech_s  how long it lasts
    kind      barge_in: the person takes the turn and the next turn follows at once;
              failed_barge_in: starts to, and gives up; backchannel: "mhm", the reply should go on
    """

    kind: Literal["barge_in", "failed_barge_in", "backchannel"]
    after_s: float
    speech_s: float


class Picture(msgspec.Struct, frozen=True):
    """An image of this size in pixels, shown with the turn."""

    width: int
    height: int


class Clip(msgspec.Struct, frozen=True):
    """A silent video of `num_frames` pictures of this size, `fps` a second. `seed`: of what it shows."""

    width: int
    height: int
    num_frames: int
    fps: float
    seed: int


class TurnScript(msgspec.Struct, frozen=True):
    """One turn of a person.

    think_s            from the end of the previous reply's playback (or reading, or the session's start); a
                       turn that follows a barge-in starts at once whatever this says
    voice              spoken turns: stretches of voice in order; empty for typed turns
    text               typed turns: the words; typing takes `typing_s`
    pictures, clips    shown with the turn
    wants              modality of the reply
    max_output_tokens  of the reply's text; None leaves it to the server
    interjections      ascending in after_s; nothing follows a barge_in
    """

    think_s: float
    voice: tuple[Voiced, ...] = ()
    text: str = ""
    typing_s: float = 0.0
    pictures: tuple[Picture, ...] = ()
    clips: tuple[Clip, ...] = ()
    wants: Literal["speech", "text"] = "speech"
    max_output_tokens: int | None = None
    interjections: tuple[Interjection, ...] = ()

    @property
    def speech_s(self) -> float:
        """Length of a spoken turn with its inner pauses, without the pause after its last stretch."""
        if not self.voice:
            return 0.0
        return sum(v.speech_s + v.pause_s for v in self.voice) - self.voice[-1].pause_s


class Acks(msgspec.Struct, frozen=True):
    """How a client reports playback: every `interval_s` plus uniform jitter, each report lost with
    probability `loss`."""

    interval_s: float = 0.2
    jitter_s: float = 0.0
    loss: float = 0.0


class PersonScript(msgspec.Struct, frozen=True, tag="person"):
    """A session: somebody who speaks or types, listens or reads.

    arrival_s             open loop: from the run's start; ignored when concurrency is bound
    seed                  of the person's voice (the PCM) and of the jitter of their acks
    acks                  None: a client that never acks
    reading_tokens_per_s  how fast text replies are read
    tells_rate            the client says so with each request, as it may over HTTP
    instructions          the session's system prompt
    """

    name: str
    arrival_s: float
    seed: int
    turns: tuple[TurnScript, ...]
    acks: Acks | None = None
    reading_tokens_per_s: float = 6.0
    instructions: str = ""
    tells_rate: bool = False


class JobCall(msgspec.Struct, frozen=True):
    """One request of a best-effort job or an agent.

    after    indices of calls of the same job that must be over first
    wait_s   from then (or from the job's arrival) until it is sent: a tool's run time
    prompt   the text sent
    """

    prompt: str
    max_output_tokens: int
    after: tuple[int, ...] = ()
    wait_s: float = 0.0


class JobScript(msgspec.Struct, frozen=True, tag="job"):
    """Text work nobody listens to: a best-effort job (one call) or an agent's graph of calls.

    rate  the client says so with each request, as it may over HTTP
    """

    name: str
    arrival_s: float
    calls: tuple[JobCall, ...]
    tier: Literal["latency", "best_effort"] = "best_effort"
    instructions: str = ""
    rate: Literal["auto"] | None = None


Script = PersonScript | JobScript
