"""Which tensors of a released Qwen3-Omni checkpoint each stage needs, and how they become its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from antiphon.models.layout import Layout, decoder_layout, mlp_layout, module_layout, speech_of
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig, SpeechConfig, VocoderConfig


def encoders_layout(layout: Layout, config: Qwen3OmniConfig) -> None:
    """The towers are transformers' modules: their own state dicts are the layout."""
    from antiphon.models.qwen3_omni.encoders import audio_tower, vision_tower

    with torch.device("meta"):
        module_layout(layout, "audio.", "thinker.audio_tower.", audio_tower(config.audio))
        module_layout(layout, "vision.", "thinker.visual.", vision_tower(config.vision))


def thinker_layout(layout: Layout, config: Qwen3OmniConfig) -> None:
    table = config.thinker_vocab, config.thinker.hidden_size
    layout.whole("embedding", "thinker.model.embed_tokens.weight", *table)
    decoder_layout(layout, "", "thinker.model.", config.thinker)
    layout.whole("head", "thinker.lm_head.weight", *table)


def talker_layout(layout: Layout, config: Qwen3OmniConfig) -> None:
    """The talker with its code predictor; it needs the thinker's embedding too."""
    speech, wide = speech_of(config.speech), config.thinker.hidden_size
    narrow, inner = speech.talker.hidden_size, speech.talker.intermediate_size
    layout.whole("thinker_embedding", "thinker.model.embed_tokens.weight", config.thinker_vocab, wide)
    for projection in ("text_projection", "hidden_projection"):
        name = f"talker.{projection}.linear_"
        layout.whole(f"{projection}.fc1", name + "fc1.weight", inner, wide)
        layout.whole(f"{projection}.fc1_bias", name + "fc1.bias", inner)
        layout.whole(f"{projection}.fc2", name + "fc2.weight", narrow, inner)
        layout.whole(f"{projection}.fc2_bias", name + "fc2.bias", narrow)
    decoder_layout(layout, "", "talker.model.", speech.talker)
    layout.whole("head", "talker.codec_head.weight", speech.talker_vocab, narrow)
    predictor_layout(layout, speech)


def predictor_layout(layout: Layout, speech: SpeechConfig) -> None:
    """Codebook embeddings under those of the talker in one table, heads stacked, the decoder as usual."""
    theirs, width = "talker.code_predictor.", speech.talker.hidden_size
    residual = range(speech.num_codebooks - 1)
    tables = [(f"{theirs}model.codec_embedding.{i}.weight", speech.predictor_vocab) for i in residual]
    first = ("talker.model.codec_embedding.weight", speech.talker_vocab)
    layout.rows("codes_table", width, first, *tables)
    heads = (f"{theirs}lm_head.{i}.weight" for i in residual)
    layout.stack("predictor.heads", heads, speech.predictor_vocab, width)
    decoder_layout(layout, "predictor.", theirs + "model.", speech.predictor)


def vocoder_layout(layout: Layout, config: Qwen3OmniConfig) -> None:
    vocoder = speech_of(config.speech).vocoder
    rows = vocoder.codebook_size * vocoder.num_codebooks
    layout.whole("code_embedding", "code2wav.code_embedding.weight", rows, vocoder.hidden_size)
    for i in range(vocoder.num_layers):
        vocoder_layer_layout(layout, f"pre_transformer.layers.{i}.", vocoder)
    layout.whole("pre_transformer.norm", "code2wav.pre_transformer.norm.weight", vocoder.hidden_size)
    for name, shape in convolution_shapes(vocoder):
        layout.whole(name, "code2wav." + name, *shape)


def vocoder_layer_layout(layout: Layout, own: str, vocoder: VocoderConfig) -> None:
    theirs, hidden, kv = f"code2wav.{own}", vocoder.hidden_size, vocoder.num_kv_heads * vocoder.head_dim
    q = vocoder.num_heads * vocoder.head_dim
    attention = theirs + "self_attn."
    parts = [(f"{attention}{p}_proj.weight", rows) for p, rows in (("q", q), ("k", kv), ("v", kv))]
    layout.rows(own + "qkv", hidden, *parts)
    layout.whole(own + "o", attention + "o_proj.weight", hidden, q)
    layout.whole(own + "input_norm", theirs + "input_layernorm.weight", hidden)
    layout.whole(own + "post_norm", theirs + "post_attention_layernorm.weight", hidden)
    layout.whole(own + "attention_scale", theirs + "self_attn_layer_scale.scale", hidden)
    layout.whole(own + "mlp_scale", theirs + "mlp_layer_scale.scale", hidden)
    mlp_layout(layout, own, theirs + "mlp.", hidden, vocoder.intermediate_size)


Shapes = Iterable[tuple[str, tuple[int, ...]]]


def convolution_shapes(vocoder: VocoderConfig) -> Shapes:
    """Names (after `code2wav.`) and shapes of all convolutions, in the order of use."""
    hidden, width = vocoder.hidden_size, vocoder.decoder_size
    for i, ratio in enumerate(vocoder.upsampling_ratios):
        yield from conv(f"upsample.{i}.0.conv", hidden, hidden, ratio, transposed=True)
        yield from convnext(f"upsample.{i}.1.", hidden)
    yield from conv("decoder.0.conv", hidden, width, 7)
    for i, rate in enumerate(vocoder.upsample_rates, 1):
        yield from snake(f"decoder.{i}.block.0.", width)
        yield from conv(f"decoder.{i}.block.1.conv", width, width // 2, 2 * rate, transposed=True)
        width //= 2
        for j in (2, 3, 4):
            yield from residual_unit(f"decoder.{i}.block.{j}.", width)
    last = len(vocoder.upsample_rates) + 1
    yield from snake(f"decoder.{last}.", width)
    yield from conv(f"decoder.{last + 1}.conv", width, 1, 7)


def conv(name: str, into: int, out: int, kernel: int, *, transposed: bool = False) -> Shapes:
    yield f"{name}.weight", (into, out, kernel) if transposed else (out, into, kernel)
    yield f"{name}.bias", (out,)


def snake(name: str, width: int) -> Shapes:
    yield name + "alpha", (width,)
    yield name + "beta", (width,)


def residual_unit(name: str, width: int) -> Shapes:
    yield from snake(name + "act1.", width)
    yield from conv(name + "conv1.conv", width, width, 7)
    yield from snake(name + "act2.", width)
    yield from conv(name + "conv2.conv", width, width, 1)


def convnext(name: str, width: int) -> Shapes:
    yield from conv(name + "dwconv.conv", 1, width, 7)
    yield name + "norm.weight", (width,)
    yield name + "norm.bias", (width,)
    yield name + "pwconv1.weight", (4 * width, width)
    yield name + "pwconv1.bias", (4 * width,)
    yield name + "pwconv2.weight", (width, 4 * width)
    yield name + "pwconv2.bias", (width,)
    yield name + "gamma", (width,)


LAYOUTS: dict[str, Callable[[Layout, Qwen3OmniConfig], None]] = {
    "encoders": encoders_layout,
    "thinker": thinker_layout,
    "talker": talker_layout,
    "code2wav": vocoder_layout,
}
"""By the stages of the graph."""
