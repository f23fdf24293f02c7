"""Client events for fuzzing: valid ones, and the ways in which clients nearly get them right."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from wire.harness import message, pcm

HUGE = st.sampled_from([2**63, -(2**63) - 1, 10**300, 10**400, -(10**400), 1e300, -1e300, 5e-324, 2**31])
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["", "\x00", "\u2028", "🙂" * 3, "é", "a" * 3000, "\u0001" * 500]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | HUGE | TEXTS


def nested(depth: int) -> dict[str, Any]:
    """An object in an object, so many times."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


JSON = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(TEXTS, SCALARS, max_size=2)
    | st.sampled_from([10, 70, 400]).map(nested)
)
ITEM_IDS = ["a", "b", "c", "root", "gone"]
CALL = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "noon"}
SPOKEN = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": pcm(0.2)}]}
SEEN = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_image", "image_url": "data:x", "detail": "low"}],
}
REPLIED = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
SESSION = {
    "type": "realtime",
    "output_modalities": ["audio"],
    "instructions": "Be kind.",
    "max_output_tokens": 64,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "name": "f"},
    "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
    "tracing": "auto",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {"model": "whisper-1", "language": "en", "prompt": "names"},
            "noise_reduction": {"type": "near_field"},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 500,
                "idle_timeout_ms": 5000,
                "min_speech_ms": 200,
            },
        },
        "output": {"format": {"type": "audio/pcmu"}, "voice": "ethan", "speed": 1.0},
    },
}
RESPONSE = {
    "conversation": "none",
    "output_modalities": ["text"],
    "instructions": "Short.",
    "input": [message(), {"type": "item_reference", "id": "a"}],
    "metadata": {"a": "b"},
    "max_output_tokens": "inf",
    "audio": {"output": {"voice": "chelsie", "format": {"type": "audio/pcma"}}},
}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "event_id": "mine", **fields}


WHOLE: list[dict[str, Any]] = [
    event("session.update", session=SESSION),
    event("session.update", session={"type": "realtime", "tools": None, "tool_choice": None}),
    event("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}),
    event("input_audio_buffer.append", audio=pcm(0.05)),
    event("input_audio_buffer.append", audio=pcm(0.2)),
    event("input_audio_buffer.commit"),
    event("input_audio_buffer.clear"),
    *(
        event("conversation.item.create", item={"id": name, **item}, previous_item_id=after)
        for name, item, after in zip(
            "abcaba",
            (message(), CALL, OUTPUT, SPOKEN, SEEN, REPLIED),
            (None, "a", "root", "b", None, "gone"),
            strict=True,
        )
    ),
    *(event("conversation.item.delete", item_id=name) for name in ITEM_IDS),
    event("conversation.item.retrieve", item_id="a"),
    event("conversation.item.truncate", item_id="a", content_index=0, audio_end_ms=10),
    event("response.create"),
    event("response.create", response={}),
    event("response.create", response=RESPONSE),
    event("response.cancel"),
    event("response.cancel", response_id="gone"),
    event("playback.ack", item_id="a", response_id="r", content_index=0, played_ms=20),
    event("antiphon.advise", prepare="turn", expected_arrival=2.5, confidence=0.5),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything within a JSON value, the value itself left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, part in inner for path in ((*at, key), *places(part, (*at, key)))]


@st.composite
def near_valid(draw: st.DrawFn, real_ids: list[str] | None = None) -> str:
    """An event as text: whole, or with up to two places that are missing, foreign, or of another type.
    `real_ids`: items and responses that are there, put where ids belong."""
    asked = json.loads(json.dumps(draw(st.sampled_from(WHOLE))))
    for name in ("item_id", "response_id", "previous_item_id"):
        if real_ids and name in asked and draw(st.booleans()):
            asked[name] = draw(st.sampled_from(real_ids))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        _spoil(draw, asked)
    return json.dumps(asked)


def _spoil(draw: st.DrawFn, asked: dict[str, Any]) -> None:
    paths = places(asked)
    if not paths:
        return
    *path, last = draw(st.sampled_from(paths))
    holder: Any = asked
    for key in path:
        holder = holder[key]
    match draw(st.sampled_from(["drop", "replace", "add", "repeat"])):
        case "drop":
            del holder[last]
        case "replace":
            holder[last] = draw(JSON)
        case "add" if isinstance(holder, dict):
            holder[draw(TEXTS)] = draw(JSON)
        case _:
            if isinstance(holder, list):
                holder.append(holder[last])
            else:
                holder[last] = [holder[last]]
