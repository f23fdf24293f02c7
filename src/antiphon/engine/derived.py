"""Default sizes of an engine, by the model and the machine: rows, tokens of a step, KV.

Rows and tokens of a step are derived for models that only write text. A model that speaks keeps the usual
ones: with more rows more replies sound at once, and each has less of the time that its frames last.
"""

from __future__ import annotations

import msgspec
import torch

from antiphon.core.config import DERIVED, USUAL_ROWS, USUAL_STEP_TOKENS, ArConfig, EngineOptions, NodeConfig
from antiphon.core.graph import StageGraph
from antiphon.latency.default_sizes import (
    CONTEXT_TOKENS,
    STEP_S,
    TOKEN_S,
    decode_s,
    prompt_s,
    rows_within,
    tokens_within,
)
from antiphon.latency.finding import find_costs
from antiphon.latency.models import ArModel
from antiphon.latency.roofline import datasheet_name, on_cores
from antiphon.latency.shapes import DecoderShape, ModelShape

GIB = 2**30
KV_SHARE = 0.5
"""Of the memory that is free beside the weights, what KV may take by default."""
READY_SHARE = 0.01
"""Of the memory that is free, what KV may take for the cache of closed sessions alone."""

Why = dict[str, str]
"""Of each default size, how it was derived, for people."""


def derived(
    options: EngineOptions,
    graph: StageGraph,
    shape: ModelShape,
    place: tuple[torch.device, torch.dtype],
    memory: tuple[int, int],
) -> tuple[EngineOptions, Why]:
    """The options with sizes in the place of those that are 0. Raises ConfigError.

    place   the device, and what is computed in
    memory  of the device: bytes that are free, and bytes that weights take of them
    """
    why: Why = {}
    fitting = _fitting(shape, place[1], memory)
    if graph.reply_stages == tuple(shape.stages):
        options = _in_time(options, shape, place[0], options.kv_tokens or fitting, why)
    if not options.kv_tokens and not options.places:
        options = _in_memory(options, place[0], memory, fitting, why)
    for size in DERIVED:
        if not getattr(options, size):
            why[size] = (
                f"{getattr(options.of(''), size)}, the usual size: none is derived for this model here"
            )
    return options, why


def ready(
    node: NodeConfig, graph: StageGraph, shape: ModelShape, dtype: torch.dtype, free: int
) -> NodeConfig:
    """The node of a CPU, where KV takes memory as it is used; `ready_blocks` by the bytes that are free."""
    written = [name for name in node.ar if name != graph.transcriber]
    decoders = {name: one for name in written if isinstance(one := shape.stages[name], DecoderShape)}
    token_bytes = sum(one.token_elements for one in decoders.values()) * dtype.itemsize
    tokens = int(READY_SHARE * free) // max(token_bytes, 1)

    def with_ready(config: ArConfig) -> ArConfig:
        blocks = max(tokens, config.step_tokens) // config.block_size
        return msgspec.structs.replace(config, ready_blocks=min(blocks, config.num_blocks))

    ar = {name: with_ready(one) if name in decoders else one for name, one in node.ar.items()}
    return msgspec.structs.replace(node, ar=ar)


def _fitting(shape: ModelShape, dtype: torch.dtype, memory: tuple[int, int]) -> int:
    """Tokens of KV that may be had by default, of each decoder as many."""
    free, weights = memory
    held = sum(own.token_elements for own in shape.stages.values() if isinstance(own, DecoderShape))
    return int(KV_SHARE * max(free - weights, 0)) // max(held * dtype.itemsize, 1)


def _in_time(
    options: EngineOptions, shape: ModelShape, device: torch.device, kv_tokens: int, why: Why
) -> EngineOptions:
    """Rows and tokens of a step, by what steps take; no more rows than have KV."""
    (stage,) = shape.stages
    found = _steps_of(options, stage, shape, device)
    if found is None:
        return options
    model, source = found
    bounds = options.classes.get("latency")
    promised = None if bounds is None else bounds.tpot_s
    token_s = promised or TOKEN_S
    chosen: dict[str, int] = {}
    if not options.max_rows:
        rows = min(rows_within(model, token_s, USUAL_ROWS), max(kv_tokens // CONTEXT_TOKENS, USUAL_ROWS))
        rows = max(rows, options.step_rows or 1)
        chosen["max_rows"] = rows
        bound = "tpot_s of class latency" if promised else "a person reads a token in it"
        why["max_rows"] = (
            f"{rows}: a decode step behind {CONTEXT_TOKENS} tokens a row takes "
            f"{decode_s(model, rows):.2g} s by {source}; the bound is {token_s:g} s ({bound}), the KV holds "
            f"{kv_tokens} tokens, and the least is {USUAL_ROWS} rows"
        )
    if not options.step_tokens:
        tokens = chosen["step_tokens"] = tokens_within(model, STEP_S, USUAL_STEP_TOKENS)
        why["step_tokens"] = (
            f"{tokens}: a prompt of so many takes {prompt_s(model, tokens):.2g} s by {source}; the bound is "
            f"{STEP_S:g} s, and the least is {USUAL_STEP_TOKENS} tokens. Beside live replies a step is cut "
            "to what they can wait for (step_s)"
        )
    return msgspec.structs.replace(options, **chosen)


def _steps_of(
    options: EngineOptions, stage: str, shape: ModelShape, device: torch.device
) -> tuple[ArModel, str] | None:
    """What steps take, and the source of it; None where nothing tells."""
    if options.profile:
        costs = find_costs(options.profile, shape if datasheet_name(options.profile) else None)
        model = costs.stages[stage].model if stage in costs.stages else None
        return (model, f"the profile {options.profile}") if isinstance(model, ArModel) else None
    own = shape.stages[stage]
    if device.type != "cpu" or not isinstance(own, DecoderShape):
        return None
    cores = options.threads or torch.get_num_threads()
    return on_cores(own, cores), f"a datasheet of {cores} cores"


def _in_memory(
    options: EngineOptions, device: torch.device, memory: tuple[int, int], fitting: int, why: Why
) -> EngineOptions:
    """KV: as much as fits, at most what all rows can fill, one context at least."""
    rows, context, block = options.of("").max_rows, options.max_context_tokens, options.block_size
    tokens = max(min(fitting, rows * context) // block * block, -(-context // block) * block)
    free, weights = (size / GIB for size in memory)
    as_used = "; memory is taken as it is used" if device.type == "cpu" else ""
    why["kv_tokens"] = (
        f"{tokens}: {free:.1f} GiB are free, weights take {weights:.2g} of them, and {KV_SHARE:g} of the "
        f"rest holds {fitting} tokens; the most is {rows} rows of {context}, the least one of them{as_used}"
    )
    return msgspec.structs.replace(options, kv_tokens=tokens)
