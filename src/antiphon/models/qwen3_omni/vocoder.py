"""The vocoder: codec frames to a 24 kHz waveform, chunk by chunk, exactly as if all frames were decoded at
once.

16 code embeddings averaged -> a transformer with a sliding window -> two upsampling blocks -> four decoder
blocks. Everything is causal but for the transposed convolutions, which look one input ahead; so a stream's
first chunk is 555 samples short and every later one is whole. What a stream must remember lies in one tuple
of tensors: frames done, the window's keys and values, the last inputs of every convolution. Each has the
streams on dimension 0 and a size that never changes: concatenate the states of streams at different places of
their speech (none at its first chunk), and they are decoded together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.qwen3_omni.config import VocoderConfig
from antiphon.models.qwen3_omni.convolutions import Convolutions
from antiphon.models.qwen3_omni.memory import Memory, State
from antiphon.nn.convolutions import can_pack
from antiphon.nn.cpu import has_compiler
from antiphon.nn.layers import gated_mlp, rms_norm
from antiphon.nn.products import linear, pack
from antiphon.nn.rope import Rope, rotate

PREPARED = 2, 4
"""Chunks of frames that are decoded when a vocoder is made: what they compile and lay out lasts."""


class Vocoder:
    """All of code2wav. Run it in fp32 where the waveform must be right: in bf16 chunks and whole differ
    audibly.
    """

    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.embedding = params["code_embedding"]
        offsets = torch.arange(config.num_codebooks, device=self.embedding.device)
        self.offsets = (offsets * config.codebook_size)[:, None]
        self.transformer = Transformer(config, params)
        self.convolutions = convolutions(config, params)

    def decode(self, codes: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """codes int64 [b, codebooks, n] of b streams and what they remember (None: all start here) ->
        pcm [b, samples] in [-1, 1] and the new state; `config.num_samples` says how many samples.
        """
        memory = Memory(state)
        done = codes.new_zeros(codes.shape[0]) if state is None else memory.recall()
        memory.keep(done + codes.shape[2])
        x = F.embedding(codes + self.offsets, self.embedding).mean(1)
        x = self.convolutions(self.transformer(x, done, memory), memory)
        return x.clamp(-1, 1), memory.state


def convolutions(config: VocoderConfig, params: Mapping[str, Tensor]) -> Callable[[Tensor, Memory], Tensor]:
    """Frames [b, n, H] to samples [b, samples], in the fastest way for these weights."""
    like = params["code_embedding"]
    if like.device.type != "cpu" or like.dtype is not torch.float32 or not can_pack() or not has_compiler():
        return Convolutions(config, params)
    from antiphon.models.qwen3_omni.packed_convolutions import PackedConvolutions

    packed = PackedConvolutions(config, params)
    memory = Memory(None)
    for frames in PREPARED:
        packed(like.new_zeros(1, frames, config.hidden_size), memory)
        memory = Memory(memory.state)
    return packed


class Transformer:
    """Layers with a sliding window of attention and a learned scale on each branch."""

    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self.norm = params["pre_transformer.norm"]
        self.rope = Rope(config.head_dim, config.rope_theta, None, self.norm.device)
        self.layers = [
            TransformerLayer(config, params, f"pre_transformer.layers.{i}.") for i in range(config.num_layers)
        ]

    def __call__(self, x: Tensor, done: Tensor, memory: Memory) -> Tensor:
        """x [b, n, H] after `done` int64 [b] frames -> [b, n, H]."""
        place = torch.arange(x.shape[1], device=x.device)
        cos, sin = self.rope.cos_sin(done[:, None] + place, x.dtype)
        mask = self.mask(place, done)
        for layer in self.layers:
            x = layer(x, cos, sin, mask, memory)
        return rms_norm(x, self.norm, self.config.rms_eps)

    def mask(self, place: Tensor, done: Tensor) -> Tensor:
        """bool [b, 1, n, remembered + n]: causal, inside the window, and not before the stream began."""
        remembered = self.config.sliding_window - 1
        keys = torch.arange(-remembered, len(place), device=place.device)
        distance = place[:, None] - keys
        near = (distance >= 0) & (distance < self.config.sliding_window)
        begun = keys >= -done[:, None]
        return (near & begun[:, None])[:, None]


class TransformerLayer:
    def __init__(self, config: VocoderConfig, params: Mapping[str, Tensor], prefix: str) -> None:
        self.config = config
        self.input_norm, self.post_norm = params[prefix + "input_norm"], params[prefix + "post_norm"]
        self.qkv, self.o = pack(params[prefix + "qkv"], 0), pack(params[prefix + "o"], 0)
        self.gate_up, self.down = pack(params[prefix + "gate_up"], 0), pack(params[prefix + "down"], 0)
        self.attention_scale, self.mlp_scale = (
            params[prefix + "attention_scale"],
            params[prefix + "mlp_scale"],
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        x = x + self.attention_scale * self.attention(x, cos, sin, mask, memory)
        h = rms_norm(x, self.post_norm, self.config.rms_eps)
        return x + self.mlp_scale * gated_mlp(h, self.gate_up, self.down)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, memory: Memory) -> Tensor:
        config = self.config
        heads, kv_heads, remembered = config.num_heads, config.num_kv_heads, config.sliding_window - 1
        h = linear(rms_norm(x, self.input_norm, config.rms_eps), self.qkv)
        h = h.unflatten(-1, (-1, config.head_dim))
        qk = rotate(h[:, :, : heads + kv_heads], cos, sin)
        k = memory.extend(qk[:, :, heads:], remembered, dim=1)
        v = memory.extend(h[:, :, heads + kv_heads :], remembered, dim=1)
        q, k, v = qk[:, :, :heads].transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads != kv_heads)
        return linear(out.transpose(1, 2).flatten(2), self.o)
