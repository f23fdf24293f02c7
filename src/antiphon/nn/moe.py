"""A mixture of experts over flat tokens: the router, and five ways to run the experts that give the same
sums.

Weights are stacked over the experts: `gate_up` [E, 2I, H] and `down` [E, I, H] (already transposed, so that
one product over E * I sums the experts as well), or what `pack_experts` makes of them. Which way is cheapest
depends on the device and on how many tokens there are:

    ragged     bf16 on CUDA: torch's grouped product, which reads the experts that were hit, once each
    compiled   fp32 on a CPU with AVX2: experts that were hit, once each, from packed weights
    gathered   fewer picks than experts: copy the picked experts' weights, one batched product
    dense      a decode batch: every expert for every token, weight 0 where not picked; no copy, no loop
    grouped    a prefill: sort the picks by expert, loop over the experts that were hit

Only the last waits for the device.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.nn.cpu import experts_in_panels, times_experts
from antiphon.nn.layers import swiglu

DENSE_TOKENS = 32
"""Up to this many tokens the weights, not the arithmetic, bound a step: computing all experts is free."""

GROUPED_PRODUCT_MAJORS = 9, 10
"""GPUs, by their major compute capability, for which torch has a grouped product of its own."""

PACKED_DIMS = 4
"""Of packed weights."""


def pack_experts(gate_up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Both as `run_experts` computes fastest with them; for nothing else. Copies where there is a kernel for
    them, else themselves. Compiles what they will need, so that the first step doesn't wait for it."""
    packed = experts_in_panels(gate_up, down)
    if packed is None:
        return gate_up, down
    x, pick = gate_up.new_zeros(1, gate_up.shape[2]), torch.zeros(1, 1, dtype=torch.int64)
    times_experts(x, pick, gate_up.new_zeros(1, 1), *packed)
    return packed


def route(x: Tensor, router: Tensor, num_picks: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """x [n, H], router [E, H] -> picked experts int64 [n, k] and their weights [n, k] in the dtype of x.

    Softmax over all experts and renormalisation are in fp32, whatever the model's dtype.
    """
    scores = F.linear(x, router).softmax(-1, dtype=torch.float)
    weights, experts = scores.topk(num_picks, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights.to(x.dtype)


def run_experts(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of the picked experts' outputs, [n, H], by the cheapest of the five ways."""
    if can_be_ragged(gate_up):
        return ragged(x, experts, weights, gate_up, down)
    if gate_up.dim() == PACKED_DIMS:
        return times_experts(x, experts, weights, gate_up, down)
    if experts.numel() < gate_up.shape[0]:
        return gathered(x, experts, weights, gate_up, down)
    if x.shape[0] <= DENSE_TOKENS:
        return dense(x, experts, weights, gate_up, down)
    return grouped(x, experts, weights, gate_up, down)


def waits_for_device(num_tokens: int, gate_up: Tensor) -> bool:
    """Whether running experts for so many tokens asks the device something: a graph cannot capture that."""
    return not can_be_ragged(gate_up) and num_tokens > DENSE_TOKENS


def can_be_ragged(gate_up: Tensor) -> bool:
    """Whether torch's grouped product has a kernel for these (rows of whole 16 bytes); elsewhere it is
    a loop that asks the host."""
    return (
        gate_up.is_cuda
        and gate_up.dtype is torch.bfloat16
        and gate_up.shape[1] % 16 == gate_up.shape[2] % 8 == 0
        and torch.cuda.get_device_capability(gate_up.device)[0] in GROUPED_PRODUCT_MAJORS
    )


def gathered(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One batched product over the [n, k] picks; copies k experts' weights for every token."""
    rows, picks = experts.shape
    flat = experts.flatten()
    h = torch.matmul(gate_up[flat].view(rows, picks, -1, x.shape[1]), x[:, None, :, None]).squeeze(-1)
    h = swiglu(h) * weights[..., None]
    return torch.bmm(h.view(rows, 1, -1), down[flat].view(rows, -1, x.shape[1])).squeeze(1)


def dense(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """All experts for all tokens in two products; what was not picked has weight 0."""
    count, double, width = gate_up.shape
    share = x.new_zeros(x.shape[0], count).scatter_(1, experts, weights)
    h = swiglu(F.linear(x, gate_up.view(-1, width)).view(-1, count, double)) * share[..., None]
    return torch.mm(h.view(x.shape[0], -1), down.view(-1, width))


def ragged(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sort the picks by expert; two products over groups whose ends stay on the device.

    A token's picks are summed in the order of its picks, whatever its neighbours are. Unverified on CUDA: has
    not run on an accelerator.
    """
    rows, picks = experts.shape
    ordered, order = experts.flatten().sort(stable=True)
    ends = torch.searchsorted(ordered, torch.arange(len(gate_up), device=x.device), right=True).int()
    h = swiglu(F.grouped_mm(x[order // picks], gate_up.transpose(1, 2), offs=ends))
    out = F.grouped_mm(h * weights.flatten()[order, None], down, offs=ends)
    return torch.empty_like(out).index_copy_(0, order, out).view(rows, picks, -1).sum(1)


def grouped(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Sort the picks by expert and run each expert that was hit once; reads the group sizes on the host."""
    flat, order = experts.flatten().sort(stable=True)
    tokens = order // experts.shape[1]
    sizes = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
    share = weights.flatten()[order, None]
    out = torch.zeros_like(x)
    start = 0
    for expert, size in enumerate(sizes):
        if size:
            mine = tokens[start : start + size]
            h = swiglu(F.linear(x[mine], gate_up[expert]))
            out.index_add_(0, mine, (h @ down[expert]) * share[start : start + size])
            start += size
    return out
