"""The wing of CPU kernels, and its door: the rest of the house imports this module and none behind it.

A decoder's steps are one call (`compiled_steps`, made by `nn.backends`). Beside it are single products,
experts, activations and the passes of a small decoder, for code without a paged decoder. Kernels need numba
(`has_compiler`); their modules are imported on first use, since importing numba takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.nn.cpu.compiler import has_amx, has_compiler, has_feature, has_pairs, told_of_kernels
from antiphon.nn.cpu.paged import cpu_attention

if TYPE_CHECKING:
    import numpy as np

    from antiphon.core.quantised import Quantised
    from antiphon.nn.cpu.draws import CompiledDraw
    from antiphon.nn.cpu.passes import CompiledPasses
    from antiphon.nn.cpu.steps import CompiledSteps
    from antiphon.nn.step import Multiply, Stack, Steps

__all__ = [
    "can_compile",
    "compiled_draw",
    "compiled_passes",
    "compiled_steps",
    "cpu_attention",
    "experts_in_panels",
    "has_compiler",
    "has_pairs",
    "in_half_panels",
    "in_panels",
    "in_quantised_panels",
    "keeps_quantised",
    "rows_of_panels",
    "snake",
    "snake_in_place",
    "times_experts",
    "times_panels",
    "told_of_kernels",
    "vectors",
]

VECTORS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512bf16": "AVX512-BF16",
    "amx-bf16": "AMX in bf16",
}
"""What CPUs have, by LLVM's names."""

REFUSED = "AMX in bf16 (not used: Linux refuses its registers)"


def vectors() -> list[str]:
    """Names of what this CPU has, for people; none without a compiler, which alone would use it."""
    if not has_compiler():
        return []
    names = [name for feature, name in VECTORS.items() if has_feature(feature)]
    return [REFUSED if name == VECTORS["amx-bf16"] and not has_amx() else name for name in names]


def can_compile(weight: Tensor) -> bool:
    """Whether steps of a decoder with this weight may be compiled: fp32 on a CPU, and a compiler at hand."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and has_compiler()


def compiled_steps(
    stack: Stack, otherwise: Steps, multiply: Multiply, *, rounds: bool = False
) -> CompiledSteps:
    """The steps of a decoder that `can_compile`, with kernels compiled by now. `otherwise` computes steps in
    which tokens move between layers, and `multiply` products with weights that are not in panels. With
    `rounds`, where the CPU `has_pairs`, weights that are stored in bf16 are multiplied in it."""
    from antiphon.nn.cpu.steps import CompiledSteps

    return CompiledSteps(stack, otherwise, multiply, rounds=rounds)


def in_panels(weight: Tensor) -> Tensor | None:
    """weight [out, in] as `times_panels` reads it, [out / 16, in, 16], or None where the CPU, the type or the
    sizes are others."""
    if weight.dim() != 2 or not can_compile(weight):
        return None
    from antiphon.nn.cpu import panels

    return panels.lay_out(weight) if panels.can_lay_out(weight) else None


def in_half_panels(weight: Tensor) -> Tensor | None:
    """weight [out, in] as `times_panels` reads it, in fp16, or None where that does not keep every number, or
    the CPU, the type or the sizes are others."""
    if weight.dim() != 2 or not can_compile(weight):
        return None
    from antiphon.nn.cpu import panels, quantised

    return quantised.in_half_panels(weight) if panels.can_lay_out(weight) else None


def keeps_quantised() -> bool:
    """Whether quantised weights of usual sizes stay in their bits: there is a compiler, and the CPU has the
    vectors."""
    if not has_compiler():
        return False
    from antiphon.nn.cpu import panels

    return panels.can_lay_out(torch.empty(panels.LANES, panels.UNROLLED, device="meta"))


def in_quantised_panels(weight: Quantised) -> Tensor | None:
    """A quantised weight as `times_panels` reads it, in as many bits, or None where this machine cannot."""
    if not has_compiler():
        return None
    from antiphon.nn.cpu import quantised

    return quantised.lay_out_quantised(weight) if quantised.can_lay_out_quantised(weight) else None


def times_panels(x: Tensor, weight: Tensor) -> Tensor:
    """x fp32 [..., in] times a weight in panels -> [..., out]."""
    from antiphon.nn.cpu import panels, quantised

    times = quantised.times_quantised if quantised.is_quantised(weight) else panels.times_panels
    return times(x, weight)


def rows_of_panels(weight: Tensor, rows: Tensor) -> Tensor:
    """Rows int64 [n] of a weight in panels -> fp32 [n, in]."""
    from antiphon.nn.cpu import panels, quantised

    read = quantised.rows_of_panels if quantised.is_quantised(weight) else panels.rows_of_panels
    return read(weight, rows)


def experts_in_panels(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor] | None:
    """Stacked weights of experts as `times_experts` reads them, or None where the CPU, the type or the sizes
    are others."""
    if not (can_compile(gate_up) and can_compile(down)):
        return None
    from antiphon.nn.cpu import experts

    return experts.experts_in_panels(gate_up, down)


def times_experts(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of the picked experts' outputs, fp32 [n, H], as `nn.moe.run_experts`."""
    from antiphon.nn.cpu.experts import times_experts

    return times_experts(x, experts, weights, gate_up, down)


def snake(*arrays: np.ndarray) -> None:
    """See `nn.cpu.activation.snake`."""
    from antiphon.nn.cpu.activation import snake

    snake(*arrays)


def snake_in_place(*arrays: np.ndarray) -> None:
    """See `nn.cpu.activation.snake_in_place`."""
    from antiphon.nn.cpu.activation import snake_in_place

    snake_in_place(*arrays)


def compiled_passes(eps: float, weights: dict[str, Tensor]) -> CompiledPasses | None:
    """Passes of a small decoder over the positions of one frame, on one core; weights by the names of
    `nn.cpu.passes.Weights`. None where the CPU, the type or the sizes are others."""
    if not can_compile(weights["heads"]):
        return None
    from antiphon.nn.cpu.passes import CompiledPasses, can_take

    return CompiledPasses(eps, weights) if can_take(weights) else None


def compiled_draw(
    temperatures: np.ndarray, top_ks: np.ndarray, top_ps: np.ndarray, seeds: np.ndarray, stage: int
) -> CompiledDraw | None:
    """Draws of rows by their parameters, fp32 and int64 [n] each, from fp32 logits on the CPU. None without a
    compiler."""
    if not has_compiler():
        return None
    from antiphon.nn.cpu.draws import CompiledDraw

    return CompiledDraw(temperatures, top_ks, top_ps, seeds, stage)
