"""What shall be done. Orders leave the deciding half; the executing half carries them out as they stand.

Orders name rows, blocks and requests. A stage's own token values never appear: the last token stays on
the device. Nothing named by an order is reused until its step is reported done.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import msgspec
import numpy as np

from antiphon.core.conversation import Item, Media, TranscriptOptions
from antiphon.core.facts import NO_INTS, Ints, StagePrompt
from antiphon.core.sampling import Guide, Sampling


class RenderPrompt(msgspec.Struct, frozen=True, tag=True):
    """Turn these items into prompts; answered by PromptReady or PromptFailed.

    tools        JSON of each tool's schema, for the chat template
    tool_choice  auto, or what the reply shall be made to begin with: required (a call), or a tool's name
    say          a text that is to be the reply; its tokens come with the answer
    transcripts  of a model that reads what was said: by the `transcript_key` of each recording in the items,
                 the tokens of the stage that wrote it down
    options      what is wanted is the prompt of a transcript that is made so, of the stage that transcribes
    raw          the prompt as it stands, a text or its token ids, in the place of items
    guide        what the reply has to match: the answer comes once that is compiled
    template     JSON object, variables for the chat template; "": its own defaults
    """

    request: int
    items: tuple[Item, ...]
    speech: bool
    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"
    say: str | None = None
    transcripts: dict[int, tuple[int, ...]] = {}
    options: TranscriptOptions | None = None
    raw: str | tuple[int, ...] | None = None
    guide: Guide | None = None
    template: str = ""


class Join(msgspec.Struct, frozen=True, eq=False):
    """A request takes a row of the executor's row table.

    A request that was preempted joins again with the tokens that it has drawn: they follow its prompt, and
    the row draws its next one after them. All upstream tokens that it has received come again with the step.

    cached       leading tokens (of prompt, then drawn) whose KV is already in the blocks given with the join
    generated    int64 [k, width], tokens drawn before, all of them confirmed
    first_input  conditioned stages: the first upstream token (the talker's g0)
    voice        conditioned stages: speaker name
    residual     how a token's further columns are drawn; None mirrors `sampling`
    draft        int64, the tokens that it is expected to draw from the first on, or NO_INTS: a guess, by
                 which an executor may compute several of them together. What is drawn is the same
    """

    row: int
    request: int
    prompt: StagePrompt
    cached: int
    sampling: Sampling
    generated: Ints
    first_input: int | None = None
    voice: str | None = None
    residual: Sampling | None = None
    draft: Ints = NO_INTS


class BlockDelta(msgspec.Struct, frozen=True, eq=False):
    """Block table entries to write: table[rows[i], index[i]] = blocks[i], in KV group `group`."""

    group: str
    rows: Ints
    index: Ints
    blocks: Ints


@dataclass(frozen=True, slots=True)
class Budget:
    """What one step may spend. Policies consume it in the order they choose.

    rows     that run in the step; the row table may have more
    seconds  that the step may take by the view's cost while replies are drawn beside its prompts. Prompts are
             cut to it (`granted`), whatever a policy chose. inf: as long as it takes
    unread_s seconds since the unit last read a prompt. None: prompts get a part of every step
    """

    tokens: int
    rows: int
    seconds: float = inf
    unread_s: float | None = None


class ArStep(msgspec.Struct, frozen=True, tag=True, eq=False):
    """One step of an autoregressive stage, as a delta to its row table.

    rows, starts, counts  int64 [n]: tokens [starts, starts + counts) of each row run in this step
    emits                 bool [n] as int64: the row samples a token after its last position
    inputs_rows/_tokens   int64 [m]: upstream tokens appended to rows before the step (conditioned stages)
    leaves                int64: rows given up before the step
    waits                 int64 (rows, tickets): CopyBlocks and MoveBlocks orders that bring blocks of a row;
                          each layer waits for its own part only
    leaves_at             int64 (rows, layers): rows of one token behind their prompt that stop before the
                          attention of a layer and are parked there; they emit nothing. For piggyback
                          (OmniServe): no policy that ships says so
    enters_at             int64 (rows, layers): parked rows that go on from the attention of the layer where
                          they stopped. Their token stands in the columns again as it did when they left; in
                          the same step they may leave at a later layer
    """

    stage: str
    step: int
    joins: tuple[Join, ...]
    leaves: Ints
    blocks: tuple[BlockDelta, ...]
    inputs_rows: Ints
    inputs_tokens: Ints
    rows: Ints
    starts: Ints
    counts: Ints
    emits: Ints
    reason: str
    waits: tuple[Ints, Ints] = (NO_INTS, NO_INTS)
    leaves_at: tuple[Ints, Ints] = (NO_INTS, NO_INTS)
    enters_at: tuple[Ints, Ints] = (NO_INTS, NO_INTS)

    @property
    def tickets(self) -> tuple[int, ...]:
        """What the step waits for, in order."""
        return tuple(sorted(set(self.waits[1].tolist())))


class CopyBlocks(msgspec.Struct, frozen=True, tag=True, eq=False):
    """Copy blocks of a KV group between the device and the host tier, targets[i] = sources[i], int64 [n].

    Done layer by layer, in the order of the tickets, which ascend; answered by CopyDone or CopyFailed. Copies
    in different directions overlap unless they touch the same blocks. What was computed before the order is
    copied. Until the answer no step may write the sources, nor touch the targets unless it names the ticket
    in `waits`; nor may a hand-off read them before such a step is done.
    """

    stage: str
    group: str
    to: Literal["host", "device"]
    sources: Ints
    targets: Ints
    ticket: int


class MoveBlocks(msgspec.Struct, frozen=True, tag=True, eq=False):
    """Copy blocks of a KV group from the device of unit `source` to that of `target`, another one of the same
    stage: targets[i] = sources[i], int64 [n].

    Layer by layer, in the order of the tickets that `target` gets, as for CopyBlocks; answered by CopyDone or
    CopyFailed of `target`, also where `source` is lost meanwhile. Until the answer no step of `source` may
    write the sources, nor one of `target` touch the targets unless it names the ticket in `waits`.
    """

    source: str
    target: str
    group: str
    sources: Ints
    targets: Ints
    ticket: int


class CodecStep(msgspec.Struct, frozen=True, tag=True, eq=False):
    """One step of a codec stage: `frames` int64 [sum counts, codebooks] of `rows`, in row order.

    joins int64: rows that begin a new stream in this step. requests int64 [n], for the report.
    ends int64 [n]: 1 where no more frames will come; a windowed codec may be given none with it.
    voices: of each row.
    """

    stage: str
    step: int
    joins: Ints
    rows: Ints
    requests: Ints
    counts: Ints
    frames: Ints
    reason: str
    ends: Ints = NO_INTS
    voices: tuple[str | None, ...] = ()


class EncodeStep(msgspec.Struct, frozen=True, tag=True):
    """Encode these media; the embeddings are kept under their keys until DropMedia."""

    stage: str
    step: int
    media: tuple[Media, ...]
    reason: str


class DropMedia(msgspec.Struct, frozen=True, tag=True):
    """Forget encoder outputs under these keys, at `unit`, which encoded them or was sent them."""

    unit: str
    keys: tuple[int, ...]


class SendMedia(msgspec.Struct, frozen=True, tag=True):
    """Copy encoder outputs from the process of `source` to that of `target`; answered by MediaArrived."""

    source: str
    target: str
    keys: tuple[int, ...]


class Handoff(msgspec.Struct, frozen=True, tag=True, eq=False):
    """Move payload rows of `source`'s KV group, at positions `positions` of row `row`, to `target`.
    Between units of two processes it is answered by PayloadArrived.

    The first of a request are its prompt's; over an edge that streams, each later one brings the row of the
    reply's next token. The row may have been given up in the step that was just reported."""

    source: str
    target: str
    group: str
    row: int
    request: int
    positions: Ints


class DropPayload(msgspec.Struct, frozen=True, tag=True):
    """The request is over in `target`: forget the payload that was handed over for it. Until then it may be
    needed again, since a preempted request joins anew."""

    target: str
    request: int


Step = ArStep | CodecStep | EncodeStep
Order = RenderPrompt | Handoff | DropPayload | DropMedia | SendMedia | CopyBlocks | MoveBlocks | Step


class AudioOut(msgspec.Struct, frozen=True, tag=True):
    """New audio of a response: mono float32 little-endian at 24 kHz.

    words  where the voice knows it: (tokens, samples) of each word that ends in it, so many tokens of the
           reply's text being over after so many samples of its audio
    """

    session: str
    response: str
    audio: bytes
    words: tuple[tuple[int, int], ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one response. Cached ones are among those of the input.

    A video's frames count as images, as does its own sound where only a part of the video is cached; audio
    tokens out are codec frames.
    """

    input_text_tokens: int = 0
    input_audio_tokens: int = 0
    input_image_tokens: int = 0
    cached_tokens: int = 0
    output_text_tokens: int = 0
    output_audio_tokens: int = 0
    cached_audio_tokens: int = 0
    cached_image_tokens: int = 0


class TokensOut(msgspec.Struct, frozen=True, tag=True, eq=False, gc=False):
    """New tokens of a response: int64 [n, width]. Text tokens come without the end-of-turn token, unless the
    request goes on behind it.

    usage     with the first tokens, where the request wants it: the counts of that moment
    logprobs  where the request wants any: `core.logprobs` bytes of the tokens that were drawn, behind those
              of the prompt; of a reply without tokens, of its prompt
    """

    session: str
    response: str
    stage: str
    tokens: Ints
    usage: Usage | None = None
    logprobs: bytes = b""


NO_SPEECH = "no_speech"
"""Why a response is cancelled that was asked for by recordings in which nobody speaks."""

GUIDE_FAILED = "guide_failed"
"""Why a response fails: its text cannot go on in the guide that its request names."""

CLIENT_CODES = ("invalid_prompt", "context_length_exceeded", NO_SPEECH, GUIDE_FAILED)
"""Why a response fails where its client asked for what cannot be."""


class ResponseEnded(msgspec.Struct, frozen=True, tag=True):
    """The one terminal event of a response.

    status  completed | cancelled | failed | incomplete
    reason  for incomplete: max_output_tokens; for cancelled: who, or NO_SPEECH; for failed: an error code
    retry_s of one that was refused: after how long its client may try again
    """

    session: str
    response: str
    status: str
    reason: str
    message: str
    usage: Usage
    retry_s: float | None = None


class StagePrepared(msgspec.Struct, frozen=True):
    """What a decoder unit has of a session's KV, in blocks per KV group, and whether the rest is brought.

    device   blocks on the device
    host     full blocks with a copy on the host
    lacking  blocks that only the host has, those on their way to the device included
    brings   the unit's fetch policy acts on advisories; others bring KV once a request waits for it
    why      what that policy says of the blocks that are lacking, in words
    """

    unit: str
    device: int
    host: int
    lacking: int
    brings: bool
    why: str = ""


TurnAnswer = Literal["", "begun", "running", "done", "busy", "nothing"]
"""What is done about a turn ahead of its reply.

""       it was not asked for
begun    what there is of it is encoded and prefilled from now on, until anybody wants a reply
running  that has begun before, and goes on
done     that has been done, and nothing was added since
busy     replies are being made, or another session's turn is prepared: nothing is done
nothing  the conversation is empty or ends with a reply: nothing of the turn is there
"""


class AdvisoryAnswered(msgspec.Struct, frozen=True, tag=True):
    """The one answer to a TurnAdvised of an open session, true of the moment after that decision.

    stages     decoder units that have KV of the session; none where nothing is kept
    is_likely  its client is confident enough that the turn comes for anything to be done
    """

    session: str
    prepare: Literal["history", "turn"]
    stages: tuple[StagePrepared, ...]
    turn: TurnAnswer = ""
    is_likely: bool = True


class WordsHeard(msgspec.Struct, frozen=True, tag=True, eq=False):
    """What the person has said so far, as a WordsWanted asked: `tokens` int64 [n], of the stage that wrote it
    down."""

    session: str
    item_id: str
    tokens: Ints
    is_pause: bool


ResponseOutput = TokensOut | AudioOut | ResponseEnded
TurnOutput = AdvisoryAnswered | WordsHeard
"""About a turn that is coming, and no response's."""

Output = ResponseOutput | TurnOutput


class Decision(msgspec.Struct, frozen=True, eq=False):
    """All that follows from the facts given at one moment.

    wake_at  absolute time at which to be asked again without a new fact, or None
    """

    orders: tuple[Order, ...]
    outputs: tuple[Output, ...]
    wake_at: float | None = None


def ints(values: list[int]) -> Ints:
    """A column from a list."""
    return np.array(values, np.int64)
