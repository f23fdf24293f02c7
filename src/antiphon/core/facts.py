"""What happened. Facts go into the deciding half; nothing else does.

Facts about a step have columns, one fact a step; facts about people are rare and small.
All are msgspec structs, so the same type crosses a process border and fills a record file.
"""

from __future__ import annotations

from math import nan
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from antiphon.core.conversation import AudioPart, Item
from antiphon.core.sampling import Sampling

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
NO_INTS: Ints = np.zeros(0, np.int64)
NO_TOKENS: Ints = np.zeros((0, 1), np.int64)


class SessionOpened(msgspec.Struct, frozen=True, tag=True):
    """A client's conversation begins."""

    session: str


class SessionClosed(msgspec.Struct, frozen=True, tag=True):
    """The client is gone; open responses end as cancelled and everything of the session is freed.

    keeps_kv  True: its KV on the device stays as cache until the room is needed, for prompts that begin alike
    """

    session: str
    keeps_kv: bool = False


class ItemAdded(msgspec.Struct, frozen=True, tag=True):
    """An item enters the record after item `after` ("root" is the front, None the end)."""

    session: str
    item: Item
    after: str | None = None


class ItemRemoved(msgspec.Struct, frozen=True, tag=True):
    """An item leaves the record."""

    session: str
    item_id: str


class ItemCut(msgspec.Struct, frozen=True, tag=True):
    """Of a reply in the record only the first `num_tokens` tokens were heard; 0: nothing of it was.

    The last cut counts, in either direction, and takes effect with the next prompt that is rendered.
    """

    session: str
    item_id: str
    num_tokens: int


class SpeechStarted(msgspec.Struct, frozen=True, tag=True):
    """The person began to speak, or a client that commits by hand began to append audio. An advisory: their
    next turn is coming."""

    session: str


class SpeechEnded(msgspec.Struct, frozen=True, tag=True):
    """The person stopped speaking, or the client committed or cleared what it had appended."""

    session: str


LIKELY = 0.5
"""Least confidence of a turn that is likely to come."""


class TurnAdvised(msgspec.Struct, frozen=True, tag=True):
    """The client says that the session's next turn is coming. Answered by one AdvisoryAnswered.

    It changes no reply. An advisory may be wrong, late or repeated; no turn may follow it.

    prepare     history: bring the KV of what was said so far; turn: also encode and prefill what there is of
                the turn, while nobody else is served
    expected_s  seconds from now until the turn is complete; nan: not said
    confidence  of the client that the turn comes, 0 to 1
    reply       as it would be asked for if the turn were complete now; None: as a session without settings
                would. Names of response and item mean nothing in it
    """

    session: str
    prepare: Literal["history", "turn"] = "history"
    expected_s: float = nan
    confidence: float = 1.0
    reply: ResponseRequested | None = None

    @property
    def is_likely(self) -> bool:
        """Nothing is done about a turn that is likelier not to come."""
        return self.confidence >= LIKELY


class TurnForeseen(msgspec.Struct, frozen=True, tag=True):
    """The person has paused, and the session's turn is `item` if it ends here; or its first turn has begun,
    and `item` is empty and has no id. Advice: it changes no reply.

    reply  as it would be asked for then; `response` and `item_id` are empty
    """

    session: str
    item: Item
    reply: ResponseRequested


class WordsWanted(msgspec.Struct, frozen=True, tag=True):
    """The client wants to see what the person has said so far in a turn that is not over. Answered by a
    WordsHeard once there is time for it, or not at all. Advice: it changes no reply.

    item_id   of the item that the turn will become
    parts     the turn so far: one recording, or the pieces of a long one
    is_pause  the person has paused behind it; else it may end within a word
    """

    session: str
    item_id: str
    parts: tuple[AudioPart, ...]
    is_pause: bool


class TurnDropped(msgspec.Struct, frozen=True, tag=True):
    """The client dropped what was said: the turn that was foreseen as item `item_id` does not come."""

    session: str
    item_id: str


class PlaybackReported(msgspec.Struct, frozen=True, tag=True):
    """The client has played `played_s` seconds of a reply's audio, by its own account (playback.ack). Of a
    reply in writing: its reader has read what takes so many seconds at the reply's `rate`."""

    session: str
    response: str
    played_s: float


class OutputHeld(msgspec.Struct, frozen=True, tag=True):
    """What a response puts out is kept from the client from here on: a voice over it may be an interruption.

    Ends with OutputReleased, or with the response's cancellation, which drops what was held.
    """

    session: str
    response: str


class OutputReleased(msgspec.Struct, frozen=True, tag=True):
    """It was no interruption: what was held of a response goes to the client now, and so does the rest."""

    session: str
    response: str


class ResponseRequested(msgspec.Struct, frozen=True, tag=True):
    """A reply is wanted.

    response   wire id of the response; item_id that of the assistant item the reply becomes
    speech     False: text only, the talker is not started
    sampling   overrides per stage name; stages not named use the checkpoint's defaults
    remember   False: the reply does not enter the record (out-of-band)
    items      replaces the record as input when given; one without parts stands for the record's of that id
    codes      True: report the talker's frames as well (the Python entry wants them)
    tools      JSON of each tool's schema, as the chat template takes them
    tool_choice  auto | none | required, or a tool's name
    retention  of a conversation that outgrew the context: it loses its oldest messages until it fills at most
               this share; None: the response fails instead
    tier       best_effort: work nobody waits for; it may be overtaken by all else
    say        this text is the reply, word for word: nothing is written, it is only spoken
    transcribe the items ask for what is said in them. Where a stage transcribes, the reply is its tokens,
               as it writes them
    answers_silence  True: it is wanted even where nobody speaks in what it would answer
    rate       tokens a second that its reader takes, of a reply in writing; auto: an agent reads it, as fast
               as there is room; None: not known
    raw        the prompt as it stands, a text or its token ids: no template, no items, no tools
    tells_counts  its first tokens bring the counts of that moment
    cache_salt  its KV is shared with requests of the same one only; "" is one too
    template   JSON object, variables for the chat template; "": its own defaults
    """

    session: str
    response: str
    item_id: str
    speech: bool = True
    instructions: str = ""
    voice: str | None = None
    sampling: dict[str, Sampling] = {}
    max_tokens: int | None = None
    remember: bool = True
    items: tuple[Item, ...] | None = None
    codes: bool = False
    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"
    tier: Literal["latency", "best_effort"] = "latency"
    say: str | None = None
    retention: float | None = None
    transcribe: bool = False
    answers_silence: bool = False
    rate: float | Literal["auto"] | None = None
    raw: str | tuple[int, ...] | None = None
    tells_counts: bool = False
    cache_salt: str = ""
    template: str = ""


class ResponseCancelled(msgspec.Struct, frozen=True, tag=True):
    """The client wants no more of this response.

    keep_tokens  how many of the reply's tokens enter the record: those that were heard; None: all
    """

    session: str
    response: str
    reason: str = "client_cancelled"
    keep_tokens: int | None = None


class Span(msgspec.Struct, frozen=True):
    """Where a media part lies in a prompt: positions [start, start + length).

    kind              audio | image | video
    grid              (t, h, w) in patches before merging, for images and videos; None for audio
    seconds_per_grid  of a video, from one of the grid's t to the next
    audio_length      how many of a video's positions stand for its own sound, in between those of its frames
    """

    key: int
    kind: str
    start: int
    length: int
    grid: tuple[int, int, int] | None = None
    seconds_per_grid: float = 1.0
    audio_length: int = 0


class StagePrompt(msgspec.Struct, frozen=True, eq=False):
    """A stage's prompt.

    token_ids   int64 [n]
    keys        int64 [n], the content identity of each position: equal keys from the front, equal KV
    spans       media, in order
    num_stable  leading positions that the session's next prompt will begin with again
    gather      int64 [m], positions of the upstream prompt whose payload rows this prompt needs
    """

    token_ids: Ints
    keys: Ints
    spans: tuple[Span, ...]
    num_stable: int
    gather: Ints


class PromptReady(msgspec.Struct, frozen=True, tag=True):
    """A prompt was rendered, for every AR stage by name.

    forced  the reply begins with these tokens, undrawn: the prompt of the stage that writes it ends with them
    reply   int64 [n]: the reply is given, and nothing has to be written: tokens of the text that the order
            said to say, one or more
    """

    request: int
    prompts: dict[str, StagePrompt]
    forced: tuple[int, ...] = ()
    reply: Ints | None = None


class PromptFailed(msgspec.Struct, frozen=True, tag=True):
    """A prompt could not be rendered; the text is for the client, the code what clients match on.

    over  how many times as long as may be it is, at least; 1: not known
    """

    request: int
    message: str
    code: str = "invalid_prompt"
    over: float = 1.0


class StepDone(msgspec.Struct, frozen=True, tag=True, eq=False):
    """A step finished.

    AR stage:  requests int64 [n], tokens int64 [n, width]: one row per row that emitted (width 1 for a
               text decoder, the number of codebooks for a talker); samples and audio as of a codec, one for
               each of them, where the stage makes sound itself
    codec:     requests int64 [n], samples int64 [n], audio: float32 little-endian bytes per row; owing: those
               of the requests for which a further step makes more sound, without further frames; words: int64
               [3 m], (request, tokens, samples) m times: so many tokens of its text are over after so many
               samples since its stream began
    encoder:   media int64 [n] keys that are ready
    AR stage:  logprobs: where a request wants any, `core.logprobs` bytes of each row that emitted
    AR stage:  refused: requests that cannot go on in their guide, and why; their rows run no further
    `audio` and `logprobs` are payloads: carried along, never recorded, never decided upon.
    seconds    that its device was busy with it; nan: not known
    """

    stage: str
    step: int
    requests: Ints
    tokens: Ints
    samples: Ints
    media: Ints
    audio: tuple[bytes, ...] = ()
    seconds: float = nan
    owing: Ints = NO_INTS
    words: Ints = NO_INTS
    logprobs: tuple[bytes, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()


class StepFailed(msgspec.Struct, frozen=True, tag=True, eq=False):
    """A step raised. Its requests (or media) are lost, nothing else."""

    stage: str
    step: int
    requests: Ints
    media: Ints
    message: str


class CopyDone(msgspec.Struct, frozen=True, tag=True):
    """Every block of a CopyBlocks order, or a MoveBlocks one, is where it should be. `stage`: the unit.

    seconds  that its link was busy with it; nan: not known
    """

    stage: str
    ticket: int
    seconds: float = nan


class CopyFailed(msgspec.Struct, frozen=True, tag=True):
    """A copy broke off: its target blocks hold nothing of use. Steps that wait for it fail."""

    stage: str
    ticket: int
    message: str


class PayloadArrived(msgspec.Struct, frozen=True, tag=True):
    """What a Handoff moved for a request to a unit of another process is there."""

    unit: str
    request: int


class MediaArrived(msgspec.Struct, frozen=True, tag=True):
    """Encoder outputs that SendMedia moved to the process of a unit are there."""

    unit: str
    keys: tuple[int, ...]


class UnitLost(msgspec.Struct, frozen=True, tag=True):
    """The process of a unit is gone, and with it its KV, rows and payloads; nothing more is heard of it."""

    unit: str
    message: str


class UnitReady(msgspec.Struct, frozen=True, tag=True):
    """A unit that was lost is there again, and bare."""

    unit: str


class PolicySuspended(msgspec.Struct, frozen=True, tag=True):
    """A policy of a unit was too slow too often: the baseline takes its decision from now on."""

    unit: str
    decision: str


PersonFact = (
    SessionOpened
    | SessionClosed
    | ItemAdded
    | ItemRemoved
    | ItemCut
    | SpeechStarted
    | SpeechEnded
    | TurnAdvised
    | TurnForeseen
    | WordsWanted
    | TurnDropped
    | PlaybackReported
    | OutputHeld
    | OutputReleased
    | ResponseRequested
    | ResponseCancelled
)
StageFact = StepDone | StepFailed
CopyFact = CopyDone | CopyFailed
UnitFact = PayloadArrived | MediaArrived | UnitLost | UnitReady
Fact = PersonFact | PromptReady | PromptFailed | StageFact | CopyFact | UnitFact | PolicySuspended


def timed(fact: Fact, seconds: float) -> Fact:
    """A reported step with how long it took; a failed one as it is."""
    return msgspec.structs.replace(fact, seconds=seconds) if isinstance(fact, StepDone) else fact
