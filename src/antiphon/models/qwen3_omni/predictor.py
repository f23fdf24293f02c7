"""The code predictor: from the talker's hidden state and codebook 0, the other codebooks of one frame.

A small dense decoder that starts anew for every frame: the hidden state at position 0, code i at position i +
1. Its 15 sequential passes of 80 ms of speech are the hottest loop of the whole system, so a frame is one
function over a dense cache of its own, without pages, masks or anything per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.decoder import Decoder
from antiphon.models.qwen3_omni.config import SpeechConfig
from antiphon.nn.layers import rms_norm

Pick = Callable[[Tensor, int], Tensor]
"""(logits fp32 [r, V], codebook 1..) -> ids int64 [r]."""


class CodePredictor:
    """Layers, one head and one embedding a codebook."""

    def __init__(self, config: SpeechConfig, params: Mapping[str, Tensor], codes_table: Tensor) -> None:
        self.num_codebooks = config.num_codebooks
        decoder = Decoder(config.predictor, params, "predictor.")
        self.config, self.layers, self.norm = decoder.config, decoder.layers, decoder.norm
        sizes = [config.talker_vocab] + [config.predictor_vocab] * (config.num_codebooks - 1)
        self.tables = codes_table.split(sizes)
        self.heads = params["predictor.heads"].unbind()
        positions = torch.arange(config.num_codebooks, device=self.norm.device)
        self.cos, self.sin = decoder.rope.cos_sin(positions, self.norm.dtype)

    def frame(self, hidden: Tensor, c0: Tensor, pick: Pick) -> Tensor:
        """Complete a frame: the final-norm hidden [r, Ht] of the position that produced c0, and c0 int64 [r]
        -> codes int64 [r, codebooks]. `pick` chooses each code from its logits; it may sample.
        """
        cache = self.new_cache(hidden.shape[0])
        x = self.first_pass(torch.stack((hidden, F.embedding(c0, self.tables[0])), 1), cache)
        codes = [c0]
        for codebook in range(1, self.num_codebooks):
            if codebook > 1:
                x = self.next_pass(F.embedding(codes[-1], self.tables[codebook - 1]), cache, codebook)
            codes.append(pick(F.linear(x, self.heads[codebook - 1]).float(), codebook))
        return torch.stack(codes, 1)

    def new_cache(self, rows: int) -> list[tuple[Tensor, Tensor]]:
        """Room for one frame's keys and values: per layer two of [r, K, codebooks, d]."""
        config = self.config
        shape = (config.num_layers, 2, rows, config.num_kv_heads, self.num_codebooks, config.head_dim)
        return [(layer[0], layer[1]) for layer in self.norm.new_empty(shape)]

    def first_pass(self, x: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Positions 0 and 1 together: x [r, 2, Ht] -> hidden [r, Ht] of position 1."""
        rows, config = x.shape[0], self.config
        cos, sin = self.cos[:2].repeat(rows, 1), self.sin[:2].repeat(rows, 1)
        x = x.flatten(0, 1)
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = (t.unflatten(0, (rows, 2)).transpose(1, 2) for t in layer.pre_attention(x, cos, sin))
            keys[:, :, :2], values[:, :, :2] = k, v
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = layer.post_attention(x, out.transpose(1, 2).flatten(0, 1))
        return rms_norm(x[1::2], self.norm, config.rms_eps)

    def next_pass(self, x: Tensor, cache: list[tuple[Tensor, Tensor]], position: int) -> Tensor:
        """One position for all rows: x [r, Ht] -> hidden [r, Ht].

        Heads that share a KV head stand where queries stand, so that no key or value is repeated.
        """
        last, groups = position + 1, (self.config.num_kv_heads, -1)
        cos, sin = self.cos[position:last], self.sin[position:last]
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = layer.pre_attention(x, cos, sin)
            keys[:, :, position], values[:, :, position] = k, v
            out = F.scaled_dot_product_attention(
                q.unflatten(1, groups), keys[:, :, :last], values[:, :, :last]
            )
            x = layer.post_attention(x, out)
        return rms_norm(x, self.norm, self.config.rms_eps)
