"""Llama, Qwen2 and Qwen3, dense or with experts: a decoder that writes text. Its whole KV survives a turn."""

from __future__ import annotations

from antiphon.core.graph import KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="text",
    model_types=("llama", "qwen2", "qwen3", "qwen3_moe"),
    stages=(Stage("thinker", StageKind.AR, groups=(KvGroup("kv"),), survives=Survives.ALL),),
    edges=(),
    module="antiphon.models.text.family",
)
