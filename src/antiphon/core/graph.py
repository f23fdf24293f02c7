"""Types of a stage graph: data only. A family's graph lives in `graphs/`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StageKind(StrEnum):
    ENCODER = "encoder"
    """Media in, embeddings out; no state between requests."""
    AR = "ar"
    """Autoregressive decoder with paged KV."""
    CODEC = "codec"
    """Codec frames in, waveform out; a small stream state per request."""


class Survives(StrEnum):
    """What of a request's KV stays idle-resident for the session's next turn."""

    ALL = "all"
    PROMPT = "prompt"
    NONE = "none"


LAYERS = "kv"
"""Name of the group that holds a stage's layers, which a configuration may split (ArConfig.layer_groups)."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """A set of layers, or another per-token payload, that is allocated together."""

    name: str


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. Its kind, and whether it is conditioned, say which step runner carries it."""

    name: str
    kind: StageKind
    groups: tuple[KvGroup, ...] = ()
    survives: Survives = Survives.NONE
    conditioned: bool = False
    """A step needs one more input from upstream (the talker's text)."""
    residual: str | None = None
    """Under which name a request gives the sampling of a token's further columns (the code predictor's)."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A hand-off. `prompt_group` names the source KV group whose rows at media positions travel with the
    prompt; `first_chunk` and `chunk` count how many units the target wants together."""

    source: str
    target: str
    prompt_group: str | None = None
    first_chunk: int = 1
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class StageGraph:
    """Stages in pipeline order, and the edges between them."""

    family: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    module: str
    """Dotted path of the module in `models/` with the family's functions (see `engine.family`)."""

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def edge(self, source: str, target: str) -> Edge:
        return next(edge for edge in self.edges if (edge.source, edge.target) == (source, target))
