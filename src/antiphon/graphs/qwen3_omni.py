"""Qwen3-Omni: encoders -> thinker -> talker (with its code predictor) -> code2wav.

What survives a turn: the thinker's whole KV and the layer hidden states beside it; of the talker's KV only
the user segments, since the next turn's talker prompt begins with them and drops every reply.
"""

from __future__ import annotations

from antiphon.core.graph import Edge, KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="qwen3_omni_moe",
    model_types=("qwen3_omni_moe",),
    stages=(
        Stage("encoders", StageKind.ENCODER),
        Stage("thinker", StageKind.AR, groups=(KvGroup("kv"), KvGroup("hidden")), survives=Survives.ALL),
        Stage(
            "talker",
            StageKind.AR,
            groups=(KvGroup("kv"),),
            survives=Survives.PROMPT,
            conditioned=True,
            residual="predictor",
        ),
        Stage("code2wav", StageKind.CODEC),
    ),
    edges=(
        Edge("encoders", "thinker"),
        Edge("thinker", "talker", prompt_group="hidden"),
        Edge("talker", "code2wav", first_chunk=2, chunk=4, credit=64),
    ),
    audio_tokens_per_s=13,
    frame_s=0.08,
    token_pixels=32 * 32,
    module="antiphon.models.qwen3_omni.family",
)
