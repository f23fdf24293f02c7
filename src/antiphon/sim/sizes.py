"""How large a simulated engine's stages are, where an operator says otherwise than it was served."""

from __future__ import annotations

from dataclasses import dataclass, fields

import msgspec

from antiphon.core.config import ArConfig
from antiphon.core.errors import ConfigError
from antiphon.models.geometry import layer_groups


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an operator chooses, per replica; None: as the engine was profiled, or as `ROOMY` says, with as
    much of its KV as a datasheet's devices have room for. Raises ConfigError."""

    max_rows: int | None = None
    kv_tokens: int | None = None
    host_kv_tokens: int | None = None
    step_tokens: int | None = None
    block_size: int | None = None
    layer_groups: int | None = None
    max_context_tokens: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "host_kv_tokens" else 1
            if field.name != "depth" and value is not None and value < least:
                raise ConfigError(f"{field.name} is {value}; it must be {least} or more")
        if self.depth not in (None, 0, 1):
            raise ConfigError(f"depth is {self.depth}; it must be 0 or 1 (steps in flight)")

    def over(self, rest: Sizes) -> Sizes:
        """What is not chosen is as in `rest`."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return Sizes(
            **{name: getattr(rest, name) if value is None else value for name, value in chosen.items()}
        )


AS_SERVED = Sizes()
ROOMY = Sizes(
    max_rows=64, kv_tokens=262_144, step_tokens=2048, block_size=16, max_context_tokens=32_768, depth=1
)


def roomy(sizes: Sizes, context: int | None = None) -> Sizes:
    """What is not chosen is as in `ROOMY`, or as long as the `context` that the model was made for; that is
    never larger than the KV."""
    whole = sizes.over(ROOMY)
    kv_tokens = in_blocks(whole.kv_tokens or 0, whole.block_size or 1)
    context = sizes.max_context_tokens or min(context or whole.max_context_tokens or 0, kv_tokens)
    return Sizes(kv_tokens=kv_tokens, max_context_tokens=context).over(whole)


def sized(config: ArConfig, sizes: Sizes, num_layers: int | None, *, is_entry: bool) -> ArConfig:
    """Only the stage that reads the prompt has a context's limit of its own. Raises ConfigError.

    num_layers  None where nobody knows: then its KV groups stay as they are
    """
    block, held = sizes.block_size or config.block_size, config.num_blocks * config.block_size
    context = sizes.max_context_tokens if is_entry else None
    kv_tokens = in_blocks(sizes.kv_tokens or held, block)
    most = context or config.max_context_tokens
    if most is not None and kv_tokens < most:
        raise ConfigError(
            f"kv_tokens ({kv_tokens}) must hold at least one context (max_context_tokens, {most})"
        )
    host_tokens = sizes.host_kv_tokens
    if host_tokens is None:
        host_tokens = config.host_blocks * config.block_size
    groups = config.layer_groups
    if sizes.layer_groups is not None and num_layers is not None:
        groups = layer_groups(num_layers, sizes.layer_groups)
    return msgspec.structs.replace(
        config,
        max_rows=sizes.max_rows or config.max_rows,
        block_size=block,
        num_blocks=kv_tokens // block,
        host_blocks=host_tokens // block,
        step_tokens=sizes.step_tokens or config.step_tokens,
        max_context_tokens=most,
        layer_groups=groups,
    )


def in_blocks(kv_tokens: int, block_size: int) -> int:
    """As many of the tokens as whole blocks hold. Raises ConfigError if that is none."""
    if kv_tokens < block_size:
        raise ConfigError(f"kv_tokens is {kv_tokens}; it must hold a block at least, {block_size} tokens")
    return kv_tokens // block_size * block_size
