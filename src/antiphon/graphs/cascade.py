"""A cascade: ears -> transcriber -> thinker (a text model) -> voice.

What a person says is written down before the thinker's prompt is made, so that the prompt is text. The
transcriber attends to what the ears made of one recording; of its KV nothing is of use to another. The voice
reads the reply's tokens as they are written and speaks them phrase by phrase; a token lasts about 0.3 s until
the voice has shown it. The thinker may be 256 tokens ahead of what is spoken: two of the longest phrases.
"""

from __future__ import annotations

from antiphon.core.graph import Edge, KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="cascade",
    model_types=("cascade",),
    stages=(
        Stage("ears", StageKind.ENCODER),
        Stage("transcriber", StageKind.AR, groups=(KvGroup("kv"),), transcribes=True),
        Stage("thinker", StageKind.AR, groups=(KvGroup("kv"),), survives=Survives.ALL),
        Stage("voice", StageKind.CODEC, windowed=True, reads=True),
    ),
    edges=(
        Edge("ears", "transcriber"),
        Edge("transcriber", "thinker", whole=True),
        Edge("thinker", "voice", credit=256),
    ),
    audio_tokens_per_s=3,
    frame_s=0.3,
    module="antiphon.models.cascade.family",
)
