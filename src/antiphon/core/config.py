"""Configuration of the deciding half: frozen, resolved before anything runs, and written into a record."""

from __future__ import annotations

import msgspec

from antiphon.core.errors import ConfigError
from antiphon.core.sampling import Sampling


class ArConfig(msgspec.Struct, frozen=True):
    """An AR stage. Blocks are per KV group, tokens per step over all rows.

    Raises ConfigError where `layer_groups` leave a gap, overlap or share a name.
    """

    max_rows: int = 8
    block_size: int = 16
    num_blocks: int = 1024
    step_tokens: int = 1024
    stop_ids: tuple[int, ...] = ()
    width: int = 1
    """Tokens per emitted row: 1, or the number of codebooks."""
    sampling: Sampling = Sampling()
    headroom_blocks: int = 1
    """Blocks beside its prompt that must be free for a request to get a row: room to draw before it may be
    preempted."""
    max_context_tokens: int | None = None
    """Prompt plus reply of one request, below what the KV holds anyway."""
    layer_groups: tuple[tuple[str, int, int], ...] = ()
    """KV groups (name, first layer, end), half-open and in order; empty: one group of all layers. That the
    last one ends with the model's last layer is checked where the pages are made."""
    host_blocks: int = 0
    """Blocks per KV group in the host tier."""

    def __post_init__(self) -> None:
        at = 0
        for name, first, end in self.layer_groups:
            if first != at or end <= first:
                raise ConfigError(
                    f"layer_groups: {name!r} holds layers {first} to {end}; it must begin at layer {at} "
                    "and hold one or more"
                )
            at = end
        names = [name for name, _, _ in self.layer_groups]
        if len(set(names)) < len(names):
            raise ConfigError(f"layer_groups: the names {names} must differ")


class CodecConfig(msgspec.Struct, frozen=True):
    """A codec stage: how many streams are open at once."""

    max_rows: int = 8


class EncoderConfig(msgspec.Struct, frozen=True):
    """An encoder stage: media per step, and how many media outputs stay cached."""

    step_media: int = 4
    cached_media: int = 64


class NodeConfig(msgspec.Struct, frozen=True):
    """All that a node decides by.

    end_inputs  per conditioned stage, the input that ends its text
    call_ids    text tokens that begin a tool call: from there on a reply is not spoken
    """

    graph: str
    ar: dict[str, ArConfig]
    codec: dict[str, CodecConfig]
    encoder: dict[str, EncoderConfig]
    end_inputs: dict[str, int]
    preset: str = "baseline"
    call_ids: tuple[int, ...] = ()


LOAD_FORMATS = ("auto", "dummy")


class EngineOptions(msgspec.Struct, frozen=True):
    """What an operator chooses when an engine starts.

    device      auto | cpu | cuda | cuda:N
    dtype       auto | float32 | bfloat16 | float16 | float64; auto is float32 on a CPU, bfloat16 on CUDA
    attention   auto | the name of a back-end; auto is the fastest that is verified on the device
    max_rows    requests that run at once in a stage
    kv_tokens   KV capacity of each AR stage, in tokens
    step_tokens tokens of one step, over all rows; longer prompts run in chunks
    max_context_tokens  prompt plus reply of one response
    threads     CPU threads of the engine; 0 leaves torch's default
    depth       steps in flight while the next is decided: 0 or 1; None is 1 on CUDA, 0 on a CPU
    tensor_parallel  processes that compute each decoder together
    graphs      off | on: decode steps and codec frames as CUDA graphs, on CUDA only; unverified
    layer_groups KV groups that a decoder's layers are split into, evenly; at most one a layer
    load_format auto: the checkpoint's weights | dummy: random ones, of which no file need be there
    dummy_seed  other dummy weights
    """

    device: str = "auto"
    dtype: str = "auto"
    attention: str = "auto"
    preset: str = "baseline"
    max_rows: int = 16
    block_size: int = 16
    kv_tokens: int = 32768
    step_tokens: int = 1024
    max_context_tokens: int = 8192
    threads: int = 0
    depth: int | None = None
    tensor_parallel: int = 1
    graphs: str = "off"
    layer_groups: int = 1
    load_format: str = "auto"
    dummy_seed: int = 0

    @property
    def held_tokens(self) -> int:
        """KV capacity of an AR stage in whole blocks, in tokens."""
        return self.kv_tokens // self.block_size * self.block_size

    def __post_init__(self) -> None:
        sizes = (
            "max_rows",
            "block_size",
            "kv_tokens",
            "step_tokens",
            "max_context_tokens",
            "tensor_parallel",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.threads < 0:
            raise ConfigError(f"threads is {self.threads}; it must be 0 (torch's default) or more")
        if self.depth not in (None, 0, 1):
            raise ConfigError(f"depth is {self.depth}; it must be 0 or 1 (steps in flight)")
        if self.graphs not in ("off", "on"):
            raise ConfigError(f"graphs is {self.graphs!r}; it must be off or on")
        if self.layer_groups < 1:
            raise ConfigError(f"layer_groups is {self.layer_groups}; it must be 1 or more")
        if self.layer_groups > 1 and self.tensor_parallel > 1:
            raise ConfigError("layer_groups are not divided among ranks: use 1, or tensor_parallel 1")
        if self.load_format not in LOAD_FORMATS:
            known = ", ".join(LOAD_FORMATS)
            raise ConfigError(f"load_format is {self.load_format!r}; it must be one of {known}")
        if self.held_tokens < self.max_context_tokens:
            raise ConfigError(
                f"kv_tokens ({self.kv_tokens}) must hold at least one context (max_context_tokens, "
                f"{self.max_context_tokens}) in whole blocks of {self.block_size}"
            )
