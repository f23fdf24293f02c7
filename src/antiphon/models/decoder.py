"""A decoder in the manner of Llama and Qwen, over flat tokens of many sequences.

Per layer: RMSNorm, fused q/k/v (with a bias where the family has one), RMSNorm of q and k (likewise), rotary
positions, grouped-query attention, then RMSNorm and a dense or mixture-of-experts MLP, optionally beside a
shared expert behind a sigmoid gate. A layer is cut at the attention, in two parts, because attention is what
back-ends exchange and what graphs leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from antiphon.models.decoder_config import DecoderConfig
from antiphon.nn.attention import paged_attention
from antiphon.nn.layers import gated_mlp, rms_norm, swiglu
from antiphon.nn.moe import pack_experts, route, run_experts, waits_for_device
from antiphon.nn.operators import OperatorSteps
from antiphon.nn.products import add_linear, linear, pack, pack_for_tape
from antiphon.nn.rope import Rope, rotate
from antiphon.nn.step import Stack, StepInputs, Steps


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
        mixture = Mixture(config, params, prefix) if config.is_moe else None
        if mixture is None:
            self.gate_up, self.down = (pack_for_tape(params[prefix + name]) for name in ("gate_up", "down"))
        else:
            self.gate_up, self.down = mixture.gate_up, mixture.down
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
        """What follows the attention, where every rank computes a part of both sums."""
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
        self.gate_up, self.down = pack_experts(params[prefix + "gate_up"], params[prefix + "down"])
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


class Decoder:
    """All layers, the final norm and the head [vocab, hidden], if it is given. The embedding belongs to the
    model that uses it. `steps` is the back-end: how all of it is computed."""

    def __init__(
        self,
        config: DecoderConfig,
        params: Mapping[str, Tensor],
        prefix: str = "",
        head: Tensor | None = None,
    ) -> None:
        self.config = config
        self.layers = [DecoderLayer(config, params, f"{prefix}layers.{i}.") for i in range(config.num_layers)]
        self.norm = params[prefix + "norm"]
        self.stack = Stack(config, self.layers, self.norm, None if head is None else pack_for_tape(head))
        self.steps: Steps = OperatorSteps(self.stack, paged_attention)
        self.rope = Rope(
            config.head_dim,
            config.rope_theta,
            config.mrope_section,
            self.norm.device,
            interleaved=config.mrope_interleaved,
            scaling=config.rope_scaling,
        )

    def new_pages(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, Tensor]]:
        """Zeroed pages for every layer, where the back-end wants them."""
        return self.steps.new_pages(num_blocks, block_size)

    def forward(self, step: StepInputs) -> tuple[Tensor, Tensor | None]:
        """Compute one step; writes the new keys and values. The hidden states after the final norm, of the
        tokens `step.wanted`, and those captured, of all tokens, or None."""
        is_plain = self.config.mrope_section is None and step.positions.dim() == 2
        positions = step.positions[0] if is_plain else step.positions
        return self.steps.run(step, self.rope.cos_sin(positions, step.x.dtype))

    def logits(self, hidden: Tensor) -> Tensor:
        """What `forward` returned, or any rows of it [r, hidden] -> fp32 [r, vocab]."""
        return self.steps.logits(hidden).float()
