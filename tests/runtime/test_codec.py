"""Every message crosses a process border as itself."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
import pytest

from antiphon.core.config import EngineOptions
from antiphon.core.conversation import AudioPart, ImagePart, Item, TextPart, TokensPart, VideoPart
from antiphon.core.facts import (
    NO_INTS,
    NO_TOKENS,
    CopyDone,
    CopyFailed,
    Fact,
    ItemAdded,
    ItemCut,
    ItemRemoved,
    MediaArrived,
    OutputHeld,
    OutputReleased,
    PayloadArrived,
    PlaybackReported,
    PolicySuspended,
    PromptFailed,
    PromptReady,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    Span,
    SpeechEnded,
    SpeechStarted,
    StagePrompt,
    StepDone,
    StepFailed,
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
    UnitLost,
    UnitReady,
    WordsWanted,
)
from antiphon.core.model_info import ModelInfo
from antiphon.core.plans import (
    AdvisoryAnswered,
    ArStep,
    AudioOut,
    BlockDelta,
    CodecStep,
    CopyBlocks,
    DropMedia,
    DropPayload,
    EncodeStep,
    Handoff,
    Join,
    MoveBlocks,
    Order,
    Output,
    RenderPrompt,
    ResponseEnded,
    SendMedia,
    StagePrepared,
    TokensOut,
    Usage,
    WordsHeard,
    ints,
)
from antiphon.core.sampling import Sampling
from antiphon.core.snapshot import SessionShown, Snapshot, StageShare, StageShown, StepShown
from antiphon.runtime.codec import decoder, encode
from antiphon.runtime.messages import (
    Failed,
    FromEngine,
    Hello,
    LoadProgress,
    Lost,
    Outputs,
    Start,
    Stats,
    Stop,
    Stuck,
    ToEngine,
    WatchOrder,
)

ITEM = Item(
    "i",
    "user",
    (
        TextPart("grüß"),
        TokensPart((1, 2)),
        AudioPart.of(np.ones(3, np.float32).tobytes()),
        ImagePart.of(bytes(12), 2, 2),
        VideoPart.of(bytes(24), (2, 2), 2, 1.5, bytes(4)),
        VideoPart.of(bytes(24), (2, 2), 2, 1.5),
    ),
)
PROMPT = StagePrompt(
    ints([5, 6]),
    ints([1 << 61, 6]),
    (Span(3, "image", 0, 1, (1, 2, 2)), Span(4, "audio", 1, 1), Span(5, "video", 2, 4, (2, 2, 2), 0.7, 2)),
    2,
    ints([0]),
)
JOIN = Join(1, 7, PROMPT, 0, Sampling(seed=-3), np.array([[3, 4]]), 9, "ethan", draft=ints([8]))
ONE = ints([1])
SNAPSHOT = Snapshot(
    1.5,
    (SessionShown("s", "waiting", "unknown", 0.0, 0.0, None, 0.5, True, (StageShare("t", 1, None, 2, 3),)),),
    (StageShown("t", 1, 2, 3, 4, 5),),
    (StepShown(1, 1.25, "t", "decode", 1, 1, "why", ("s",)),),
    1,
)
OUTPUTS = (
    TokensOut("s", "r", "thinker", NO_TOKENS),
    AudioOut("s", "r", b"\x01\x02"),
    ResponseEnded("s", "r", "failed", "why", "how", Usage(1, 2, 3, 4, 5, 6)),
    AdvisoryAnswered("s", "turn", (StagePrepared("thinker", 3, 4, 2, True),)),
    WordsHeard("s", "i", ints([5, 6]), True),
)
MESSAGES: list[Any] = [
    SessionOpened("s"),
    SessionClosed("s"),
    ItemAdded("s", ITEM, "root"),
    ItemRemoved("s", "i"),
    ItemCut("s", "i", 3),
    SpeechStarted("s"),
    SpeechEnded("s"),
    TurnAdvised("s", "turn", 2.5, 0.5),
    TurnForeseen("s", Item("i", "user", (TextPart("x"),)), ResponseRequested("s", "", "")),
    WordsWanted("s", "i", (AudioPart.of(b"\0" * 8),), True),
    TurnDropped("s", "i"),
    OutputHeld("s", "r"),
    OutputReleased("s", "r"),
    PlaybackReported("s", "r", 1.5),
    ResponseRequested("s", "r", "i", sampling={"talker": Sampling(0.9, 50)}, max_tokens=3, items=(ITEM,)),
    ResponseCancelled("s", "r"),
    PromptReady(1, {"thinker": PROMPT}),
    PromptFailed(1, "no"),
    StepDone("talker", 4, ints([1, 2]), np.arange(32).reshape(2, 16), NO_INTS, NO_INTS, (b"\x00",), 0.5),
    StepFailed("thinker", 4, ONE, NO_INTS, "no"),
    RenderPrompt(1, (ITEM,), True),
    Handoff("thinker", "talker", "hidden", 1, 2, ONE),
    DropPayload("talker", 4),
    DropMedia("encoders", (1, 2)),
    SendMedia("encoders", "thinker", (1, 2)),
    PayloadArrived("talker", 4),
    MediaArrived("thinker", (1, 2)),
    UnitLost("talker", "killed"),
    UnitReady("talker"),
    PolicySuspended("talker", "step"),
    ArStep("t", 1, (JOIN,), ONE, (BlockDelta("kv", ONE, ONE, ONE),), ONE, ONE, ONE, ONE, ONE, ONE, "why"),
    CopyBlocks("t", "kv", "host", ONE, ints([4]), 7),
    MoveBlocks("t.0", "t.1", "kv", ONE, ints([4]), 8),
    CopyDone("t", 7, 0.25),
    CopyFailed("t", 8, "no"),
    CodecStep("c", 1, ONE, ONE, ONE, ONE, np.zeros((1, 16), np.int64), "why"),
    EncodeStep("e", 1, ITEM.parts[2:], "why"),
    *OUTPUTS,
    Outputs(OUTPUTS),
    Hello(),
    Stop(),
    WatchOrder(0.25),
    WatchOrder(None),
    Stuck("the policy Hold (pace of talker) has not decided for 12 s"),
    Stuck(""),
    Start("path", "name", EngineOptions(max_rows=3), "file"),
    LoadProgress("x", 1, 2),
    Failed("no"),
    Stuck("why"),
    Lost({"talker": "why"}),
    Stats({"a": 1.5}),
    Lost({"talker": "its process was killed"}),
    SNAPSHOT,
    ModelInfo("n", "p", "f", ("a",), 1, "cpu", "float32"),
]
UNIONS = [Fact, Order, Output, ToEngine, FromEngine]


def plain(value: Any) -> Any:
    """Comparable: arrays as (dtype, shape, values)."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, msgspec.Struct):
        return type(value), {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return value


def test_every_type_is_here() -> None:
    known = {kind for union in UNIONS for kind in get_args(union)}
    assert {type(message) for message in MESSAGES} == known


def test_an_ar_step_carries_waits_and_moves() -> None:
    step = next(message for message in MESSAGES if isinstance(message, ArStep))
    moving = msgspec.structs.replace(
        step, waits=(ints([5, 5]), ints([3, 4])), leaves_at=(ONE, ints([2])), enters_at=(ONE, ONE)
    )
    for message in (step, moving):
        assert plain(decoder(Order).decode(encode(message))) == plain(message)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Any) -> None:
    unions = [union for union in UNIONS if type(message) in get_args(union)]
    for union in unions:
        assert plain(decoder(union).decode(encode(message))) == plain(message)


def test_numpy_scalars_become_numbers() -> None:
    assert decoder(FromEngine).decode(encode(Stats({"a": np.float64(2.5), "b": np.int64(3)}))).values == {
        "a": 2.5,
        "b": 3.0,
    }


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", encode(Hello()), encode({"type": "Other"})])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decoder(ToEngine).decode(data)


def test_wrong_columns_are_refused() -> None:
    data = encode({"type": "TokensOut", "session": "", "response": "", "stage": "", "tokens": 3})
    with pytest.raises(msgspec.MsgspecError):
        decoder(Output).decode(data)


def test_what_has_no_wire_form_is_named() -> None:
    with pytest.raises(TypeError, match="object"):
        encode(object())
