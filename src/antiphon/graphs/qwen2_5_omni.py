"""Qwen2.5-Omni: encoders -> thinker -> talker (one code a step, 20 ms) -> token2wav.

The talker is shown the thinker's final state of every token, so the edge between them streams states. What
survives a turn: the thinker's whole KV with the states beside it, and the talker's KV of the prompt.
A block of token2wav is 12 codes (0.24 s), and sure once two more are there: so many make the first sound.
The talker may be 5 s ahead of it, as Qwen3-Omni's: 256 codes, several chunks and the first one.
"""

from __future__ import annotations

from antiphon.core.graph import Edge, KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="qwen2_5_omni",
    model_types=("qwen2_5_omni",),
    stages=(
        Stage("encoders", StageKind.ENCODER),
        Stage("thinker", StageKind.AR, groups=(KvGroup("kv"), KvGroup("hidden")), survives=Survives.ALL),
        Stage("talker", StageKind.AR, groups=(KvGroup("kv"),), survives=Survives.PROMPT, conditioned=True),
        Stage("token2wav", StageKind.CODEC, windowed=True),
    ),
    edges=(
        Edge("encoders", "thinker"),
        Edge("thinker", "talker", prompt_group="hidden", streams=True),
        Edge("talker", "token2wav", first_chunk=36, chunk=24, credit=256),
    ),
    audio_tokens_per_s=25,
    frame_s=0.02,
    token_pixels=28 * 28,
    module="antiphon.models.qwen2_5_omni.family",
)
