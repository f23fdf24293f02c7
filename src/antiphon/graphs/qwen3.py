"""Qwen3: one decoder that writes text. Its whole KV survives a turn."""

from __future__ import annotations

from antiphon.core.graph import KvGroup, Stage, StageGraph, StageKind, Survives

GRAPH = StageGraph(
    family="qwen3",
    stages=(Stage("thinker", StageKind.AR, groups=(KvGroup("kv"),), survives=Survives.ALL),),
    edges=(),
    module="antiphon.models.qwen3.family",
)
