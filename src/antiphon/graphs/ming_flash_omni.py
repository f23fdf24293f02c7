"""Ming-Flash-Omni 2.0: encoders -> thinker -> talker, whose stage holds its vocoder. To be simulated only.

The talker is given the reply's text once all of it is written, and nothing of the prompt, as vLLM-Omni has it
(vllm_omni/deploy/ming_flash_omni.yaml: async_chunk false). So nothing of its KV is of use to a later turn.
Each of its steps makes four latents of 80 ms, and their sound.
"""

from __future__ import annotations

from antiphon.core.graph import Edge, KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="ming_flash_omni",
    stages=(
        Stage("encoders", StageKind.ENCODER),
        Stage("thinker", StageKind.AR, groups=(KvGroup("kv"),), survives=Survives.ALL),
        Stage("talker", StageKind.AR, groups=(KvGroup("kv"),), conditioned=True),
    ),
    edges=(Edge("encoders", "thinker"), Edge("thinker", "talker", whole=True)),
    audio_tokens_per_s=25,
    frame_s=0.32,
    token_pixels=32 * 32,
)
