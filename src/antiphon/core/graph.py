"""Types of a stage graph: data only. A family's graph lives in `graphs/`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from antiphon.core.errors import ConfigError


class StageKind(StrEnum):
    ENCODER = "encoder"
    """Media in, embeddings out; no state between requests."""
    AR = "ar"
    """Autoregressive decoder with paged KV. One that speaks with no codec behind it reports sound itself."""
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
    """One stage. Its kind, and whether it is conditioned or windowed, say which step runner carries it."""

    name: str
    kind: StageKind
    groups: tuple[KvGroup, ...] = ()
    survives: Survives = Survives.NONE
    conditioned: bool = False
    """A step needs one more input from upstream (the talker's text)."""
    windowed: bool = False
    """Of a codec: what a frame sounds like depends on later ones, so it holds sound back, and has to be told
    when a stream ends."""
    reads: bool = False
    """Of a codec: its frames are the tokens of the reply's text. A step takes as many as there are, and may
    leave sound to be made without further ones."""
    transcribes: bool = False
    """Of a decoder: it writes what is said in a medium, before a prompt is made of that. Its layers attend to
    what the encoder made of the medium."""
    residual: str | None = None
    """Under which name a request gives the sampling of a token's further columns (the code predictor's)."""

    @property
    def speaks(self) -> bool:
        """Does it decide what a text sounds like?"""
        return self.conditioned or self.reads


@dataclass(frozen=True, slots=True)
class Edge:
    """A hand-off. `prompt_group` names the source KV group whose rows at media positions travel with the
    prompt; with `streams`, those of all positions that its `gather` names and of every token of the reply do.
    `first_chunk` and `chunk` count how many units the target wants together. `credit` is how many units of a
    request the source may be ahead of what the target has taken up; None: as many as it likes. `whole`: the
    target begins once the source has written all of it.

    Raises ValueError for less credit than a chunk: both would wait for each other.
    """

    source: str
    target: str
    prompt_group: str | None = None
    first_chunk: int = 1
    chunk: int = 1
    streams: bool = False
    credit: int | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.credit is not None and self.credit < max(self.first_chunk, self.chunk):
            raise ValueError(f"{self.source} -> {self.target}: credit {self.credit} is less than a chunk")


@dataclass(frozen=True, slots=True)
class StageGraph:
    """Stages in pipeline order, and the edges between them."""

    family: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...]
    module: str = ""
    """Dotted path of the module in `models/` with the family's functions (see `engine.family`); empty for a
    family that can only be simulated."""
    model_types: tuple[str, ...] = ()
    """What a checkpoint's config.json may say that it is."""
    audio_tokens_per_s: int = 0
    """Of what is said to it."""
    frame_s: float = 0.0
    """How long a frame of the talker sounds, and a token of text lasts it."""
    token_pixels: int = 1
    """Of a picture, that one token stands for."""

    @property
    def reply_stages(self) -> tuple[str, ...]:
        """Those that make a reply, in pipeline order: all but those that take what is said to it."""
        return tuple(
            stage.name
            for stage in self.stages
            if stage.kind is not StageKind.ENCODER and not stage.transcribes
        )

    @property
    def has_voice(self) -> bool:
        return any(stage.speaks for stage in self.stages)

    @property
    def transcriber(self) -> str | None:
        """The stage that writes down what is said; None where the stage that replies hears it itself."""
        return next((stage.name for stage in self.stages if stage.transcribes), None)

    @property
    def sees(self) -> bool:
        """Does it take pictures and clips? Of media, a stage that writes down what is said takes recordings
        alone."""
        return self.takes_media and self.transcriber is None

    @property
    def takes_media(self) -> bool:
        return any(stage.kind is StageKind.ENCODER for stage in self.stages)

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def edge(self, source: str, target: str) -> Edge:
        return next(edge for edge in self.edges if (edge.source, edge.target) == (source, target))

    def changed(self, source: str, target: str, **chosen: int) -> StageGraph:
        """A copy of the graph with other `first_chunk`, `chunk` or `credit` on one edge. Raises ConfigError
        for an edge that is not there, for any of them where the target gathers nothing, and for credit below
        a chunk."""
        known = [f"{edge.source} -> {edge.target}" for edge in self.edges]
        name = f"{source} -> {target}"
        if name not in known:
            raise ConfigError(f"edges: this model has no {name}; it has {', '.join(known) or 'none'}")
        if chosen and self.stage(target).kind is not StageKind.CODEC:
            raise ConfigError(f"edge {name}: {', '.join(chosen)} are for a codec, which {target} is not")
        try:
            edge = replace(self.edge(source, target), **chosen)
        except ValueError:
            credit = chosen.get("credit", self.edge(source, target).credit)
            raise ConfigError(
                f"edge {name}: a chunk is more than its credit ({credit}), so both stages would wait; "
                "raise `credit`, or have smaller chunks"
            ) from None
        edges = [edge if (e.source, e.target) == (source, target) else e for e in self.edges]
        return replace(self, edges=tuple(edges))
