"""A decoder in the manner of Llama and Qwen, over flat tokens of many sequences.

Per layer: RMSNorm, fused q/k/v (with a bias where the family has one), RMSNorm of q and k (likewise), rotary
positions, grouped-query attention, then RMSNorm and a dense or mixture-of-experts MLP, optionally beside a
shared expert behind a sigmoid gate. A layer is cut at the attention, in two parts, because attention is what
back-ends exchange and what graphs leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.models.decoder_config import DecoderConfig
from antiphon.models.decoder_graphs import DecodeGraphs
from antiphon.nn.attention import paged_attention
from antiphon.nn.backends import Attention
from antiphon.nn.compiler import has_compiler
from antiphon.nn.cpu_attention import cpu_attention
from antiphon.nn.graphs import BUCKETS, Capture
from antiphon.nn.large_pages import on_large_pages
from antiphon.nn.layers import gated_mlp, rms_norm, swiglu
from antiphon.nn.moe import prepare, route, run_experts, waits_for_device
from antiphon.nn.products import add_linear, linear, pack, pack_for_tape
from antiphon.nn.rope import Rope, rotate
from antiphon.nn.step import StepInputs

if TYPE_CHECKING:
    from antiphon.models.decoder_compiled import CompiledSteps

Pages = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [blocks, block_size, num_kv_heads, head_dim]."""


class DecoderLayer:
    """One layer's weights and the two halves of its arithmetic, before and after the attention."""

    __slots__ = (
        "config",
        "down",
        "gate_up",
        "input_norm",
        "mixture",
        "o",
        "post_norm",
        "qk_norm",
        "qkv",
        "qkv_bias",
        "total",
    )

    def __init__(self, config: DecoderConfig, params: Mapping[str, Tensor], prefix: str) -> None:
        self.config = config
        self.input_norm, self.post_norm = params[prefix + "input_norm"], params[prefix + "post_norm"]
        self.qkv, self.o = pack_for_tape(params[prefix + "qkv"]), pack_for_tape(params[prefix + "o"])
        self.qkv_bias = params.get(prefix + "qkv_bias")
        self.qk_norm = _qk_norm(config, params, prefix) if config.qk_norm else None
        self.gate_up, self.down = (pack_for_tape(params[prefix + name]) for name in ("gate_up", "down"))
        mixture = Mixture(config, params, prefix) if config.is_moe else None
        self.mixture: Callable[[Tensor], Tensor] | None = mixture
        self.total: Callable[[Tensor], Tensor] | None = None
        """Where this layer is a part of one: what adds up the parts [n, hidden]."""

    def pre_attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [n, hidden], cos and signed sin [n, d] -> q [n, H, d], k [n, K, d] (both turned), v [n, K, d]."""
        config = self.config
        turned = config.num_heads + config.num_kv_heads
        h = linear(rms_norm(x, self.input_norm, config.rms_eps), self.qkv, self.qkv_bias)
        h = h.view(x.shape[0], -1, config.head_dim)
        qk = h[:, :turned]
        if self.qk_norm is not None:
            qk = rms_norm(qk, self.qk_norm, config.rms_eps)
        qk = rotate(qk, cos, sin)
        return qk[:, : config.num_heads], qk[:, config.num_heads :], h[:, turned:]

    def post_attention(self, x: Tensor, attention: Tensor) -> Tensor:
        """x [n, hidden] and attention [n, H, d] -> the layer's output [n, hidden]."""
        if self.total is not None:
            return self._post_attention_shared(x, attention, self.total)
        x = add_linear(x, attention.flatten(1), self.o)
        h = rms_norm(x, self.post_norm, self.config.rms_eps)
        if self.mixture is None:
            return add_linear(x, swiglu(linear(h, self.gate_up)), self.down)
        return x + self.mixture(h)

    def waits_for_device(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens asks the device something."""
        return self.config.is_moe and waits_for_device(num_tokens, self.gate_up)

    def _post_attention_shared(
        self, x: Tensor, attention: Tensor, total: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The same where every rank computes a part of both sums."""
        x = x + total(linear(attention.flatten(1), self.o))
        h = rms_norm(x, self.post_norm, self.config.rms_eps)
        part = gated_mlp(h, self.gate_up, self.down) if self.mixture is None else self.mixture(h)
        return x + total(part)


def _qk_norm(config: DecoderConfig, params: Mapping[str, Tensor], prefix: str) -> Tensor:
    """The weights of all heads that are normalised, q then k, [H + K, d]."""
    q_norm = params[prefix + "q_norm"].expand(config.num_heads, -1)
    k_norm = params[prefix + "k_norm"].expand(config.num_kv_heads, -1)
    return torch.cat((q_norm, k_norm))


class Mixture:
    """Routed experts, and beside them the shared expert behind its gate where there is one."""

    __slots__ = ("config", "down", "gate_up", "router", "shared")

    def __init__(self, config: DecoderConfig, params: Mapping[str, Tensor], prefix: str) -> None:
        self.config, self.router = config, params[prefix + "router"]
        self.gate_up, self.down = params[prefix + "gate_up"], params[prefix + "down"]
        prepare(self.gate_up, self.down)
        names = ("shared_gate_up", "shared_down", "shared_gate")
        self.shared = [pack(params[prefix + name]) for name in names] if config.shared_expert_size else None

    def __call__(self, h: Tensor) -> Tensor:
        """[n, hidden] -> [n, hidden]."""
        if not len(h):
            return h
        experts, weights = route(h, self.router, self.config.num_picks, self.config.normalise_picks)
        out = run_experts(h, experts, weights, self.gate_up, self.down)
        if self.shared is None:
            return out
        gate_up, down, gate = self.shared
        return torch.addcmul(out, linear(h, gate).sigmoid(), gated_mlp(h, gate_up, down))


def can_compile(norm: Tensor) -> bool:
    """Whether what is between the products of a decoder with this weight may be compiled."""
    return norm.device.type == "cpu" and norm.dtype is torch.float32 and has_compiler()


class Decoder:
    """All layers, the final norm and the head [vocab, hidden], if it is given. The embedding belongs to the
    model that uses it."""

    def __init__(
        self,
        config: DecoderConfig,
        params: Mapping[str, Tensor],
        prefix: str = "",
        head: Tensor | None = None,
    ) -> None:
        self.config = config
        self._head = None if head is None else pack_for_tape(head)
        self._scored: tuple[Tensor, Tensor] | None = None
        """What the last step returned, and the head's scores of it, until somebody asks for them."""
        self.layers = [DecoderLayer(config, params, f"{prefix}layers.{i}.") for i in range(config.num_layers)]
        self.norm = params[prefix + "norm"]
        self.attention: Attention = paged_attention
        self.graphs: DecodeGraphs | None = None
        self.rope = Rope(
            config.head_dim,
            config.rope_theta,
            config.mrope_section,
            self.norm.device,
            interleaved=config.mrope_interleaved,
            scaling=config.rope_scaling,
        )
        self._is_plain = config.mrope_section is None
        self.can_compile = can_compile(self.norm)
        self._steps: CompiledSteps | None = None
        if self.can_compile:
            from antiphon.models.decoder_compiled import compile_loops

            compile_loops()

    def use_graphs(self, capture: Capture) -> None:
        """From now on decode steps are captured and replayed."""
        buckets = tuple(
            rows for rows in BUCKETS if not any(layer.waits_for_device(rows) for layer in self.layers)
        )
        self.graphs = DecodeGraphs(self.layers, (self.norm, self.config.rms_eps), capture, buckets)

    def new_pages(self, num_blocks: int, block_size: int) -> list[Pages]:
        """Zeroed pages for every layer, in this decoder's dtype and on its device."""
        shape = (num_blocks, block_size, *self.config.kv_shape)
        if self.can_compile:
            size = prod(shape)
            return [(on_large_pages(size).view(shape), on_large_pages(size).view(shape)) for _ in self.layers]
        return [(self.norm.new_zeros(shape), self.norm.new_zeros(shape)) for _ in self.layers]

    def forward(self, step: StepInputs) -> tuple[Tensor, Tensor | None]:
        """Compute one step; writes the new keys and values. The hidden states after the final norm, of the
        tokens `step.wanted`, and those captured, of all tokens, or None."""
        positions = step.positions[0] if self._is_plain and step.positions.dim() == 2 else step.positions
        turns, narrow = self.rope.cos_sin(positions, step.x.dtype), step.narrow
        if step.transfers is None and self._is_compiled():
            x, captured, scores = self._compiled_steps(len(step.x)).run(step, turns)
            self._scored = None if scores is None else (x, scores)
        elif self.graphs is not None and self.graphs.takes(step):
            x, captured, narrow = self.graphs.forward(step, turns, self.attention), None, None
        else:
            x, captured = self._by_operators(step, turns)
        return (x if step.wanted is None or narrow is not None else x[step.wanted]), captured

    def logits(self, hidden: Tensor) -> Tensor:
        """What `forward` returned, or any rows of it [r, hidden] -> fp32 [r, vocab]."""
        scored, self._scored = self._scored, None
        if scored is not None and scored[0] is hidden:
            return scored[1]
        assert self._head is not None, "a head was given"
        return linear(hidden, self._head).float()

    def _by_operators(self, step: StepInputs, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Layer by layer; past the last attention only the tokens `step.narrow`."""
        x, narrow = step.x, step.narrow
        captured = x if step.capture == 0 else None
        for i, (layer, cache) in enumerate(zip(self.layers, step.kv, strict=True)):
            if step.transfers is None:
                q, k, v = layer.pre_attention(x, *turns)
                attended = cache.attend(q, k, v, self.attention)
                if narrow is not None and i + 1 == len(self.layers):
                    x, attended = x[narrow], attended[narrow]
                x = layer.post_attention(x, attended)
            else:
                x = step.transfers.through(i, layer, (x, *turns), cache, self.attention)
            if step.capture == i + 1:
                captured = x
            if step.visual is not None and i < len(step.deepstack):
                x = x.index_add(0, step.visual, step.deepstack[i].to(x.dtype))
        x = rms_norm(x, self.norm, self.config.rms_eps)
        return x, x if step.capture == len(self.layers) else captured

    def _is_compiled(self) -> bool:
        """Whether compiled passes stand between the products of this step."""
        return self.can_compile and self.attention is cpu_attention and self.graphs is None

    def _compiled_steps(self, num_tokens: int) -> CompiledSteps:
        """With room for so many tokens, for as many threads as torch computes with."""
        steps, threads = self._steps, torch.get_num_threads()
        if steps is None or steps.room < num_tokens or steps.threads != threads:
            from antiphon.models.decoder_compiled import CompiledSteps

            steps = self._steps = CompiledSteps(self.layers, self.norm, self._head, num_tokens, threads)
        return steps
