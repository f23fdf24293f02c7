"""Sizes and parameters of a VITS voice, as config.json and transformers' files name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Self

from antiphon.core.errors import CheckpointError
from antiphon.models.cascade.served import check_served
from antiphon.models.layout import Layout

DEFAULTS: Mapping[str, Any] = {
    "num_hidden_layers": 6,
    "window_size": 4,
    "ffn_kernel_size": 3,
    "layer_norm_eps": 1e-5,
    "prior_encoder_num_flows": 4,
    "prior_encoder_num_wavenet_layers": 4,
    "wavenet_kernel_size": 5,
    "wavenet_dilation_rate": 1,
    "duration_predictor_num_flows": 4,
    "depth_separable_num_layers": 3,
    "duration_predictor_kernel_size": 3,
    "duration_predictor_flow_bins": 10,
    "duration_predictor_tail_bound": 5.0,
    "leaky_relu_slope": 0.1,
    "speaking_rate": 1.0,
    "noise_scale": 0.667,
    "noise_scale_duration": 0.8,
}
"""What a config.json need not say, as transformers has it."""


@dataclass(frozen=True, slots=True)
class VitsConfig:
    """Sizes, as config.json names them. `kernels`: of a stage's residual blocks, each with its dilations."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    window: int
    mlp: int
    mlp_kernel: int
    eps: float
    flow_size: int
    num_flows: int
    wavenet_layers: int
    wavenet_kernel: int
    wavenet_dilation: int
    duration_flows: int
    duration_layers: int
    duration_kernel: int
    duration_bins: int
    tail_bound: float
    channels: int
    rates: tuple[int, ...]
    rate_kernels: tuple[int, ...]
    kernels: tuple[tuple[int, tuple[int, ...]], ...]
    resblock_version: int
    slope: float
    speaking_rate: float
    noise: float
    duration_noise: float
    sample_rate: int

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """From config.json; raises CheckpointError."""
        known = {
            "num_speakers": (1,),
            "use_stochastic_duration_prediction": (True,),
            "hidden_act": ("relu",),
            "depth_separable_channels": (2,),
            "use_bias": (True,),
            "resblock_version": (1, 2),
        }
        check_served("voice", config, "vits", known)
        config = {**DEFAULTS, **config}
        try:
            return cls(
                vocab=config["vocab_size"],
                hidden=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                window=config["window_size"],
                mlp=config["ffn_dim"],
                mlp_kernel=config["ffn_kernel_size"],
                eps=config["layer_norm_eps"],
                flow_size=config["flow_size"],
                num_flows=config["prior_encoder_num_flows"],
                wavenet_layers=config["prior_encoder_num_wavenet_layers"],
                wavenet_kernel=config["wavenet_kernel_size"],
                wavenet_dilation=config["wavenet_dilation_rate"],
                duration_flows=config["duration_predictor_num_flows"],
                duration_layers=config["depth_separable_num_layers"],
                duration_kernel=config["duration_predictor_kernel_size"],
                duration_bins=config["duration_predictor_flow_bins"],
                tail_bound=config["duration_predictor_tail_bound"],
                channels=config["upsample_initial_channel"],
                rates=tuple(config["upsample_rates"]),
                rate_kernels=tuple(config["upsample_kernel_sizes"]),
                kernels=tuple(
                    (kernel, tuple(dilations))
                    for kernel, dilations in zip(
                        config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True
                    )
                ),
                resblock_version=config.get("resblock_version", 1),
                slope=config["leaky_relu_slope"],
                speaking_rate=config["speaking_rate"],
                noise=config["noise_scale"],
                duration_noise=config["noise_scale_duration"],
                sample_rate=config["sampling_rate"],
            )
        except KeyError as error:
            raise CheckpointError(f"voice: config.json has no {error}") from None

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return prod(self.rates)

    @property
    def context(self) -> int:
        """Frames on each side of one that decide with it what it sounds like."""
        reach, rate = 3.0, 1  # the first convolution, over frames
        for factor, kernel in zip(self.rates, self.rate_kernels, strict=True):
            reach += (ceil((kernel + factor) / (2 * factor)) - 1) / rate
            rate *= factor
            reach += max(self._block_reach(*block) for block in self.kernels) / rate
        return ceil(reach + 3 / rate)

    @property
    def flow_context(self) -> int:
        """Frames on each side of one that decide with it what the flow makes of it."""
        dilations = [self.wavenet_dilation**i for i in range(self.wavenet_layers)]
        return self.num_flows * sum((self.wavenet_kernel - 1) * dilation // 2 for dilation in dilations)

    def _block_reach(self, kernel: int, dilations: Sequence[int]) -> int:
        half = (kernel - 1) // 2
        plain = len(dilations) if self.resblock_version == 1 else 0
        return half * (sum(dilations) + plain)


def voice_layout(layout: Layout, config: VitsConfig) -> None:
    """All but what training alone needs, and the first flow of the durations, which is never used."""
    _text_layout(layout, config)
    _duration_layout(layout, config)
    for i in range(config.num_flows):
        _flow_layout(layout, f"flow.flows.{i}.", config)
    _decoder_layout(layout, config)


def _conv(layout: Layout, name: str, out: int, into: int, kernel: int, *, bias: bool = True) -> None:
    layout.whole(name + ".weight", name + ".weight", out, into, kernel)
    if bias:
        _vectors(layout, out, name + ".bias")


def _normed_conv(layout: Layout, name: str, out: int, into: int, kernel: int) -> None:
    """A convolution whose weight is a length and a direction."""
    own = name + ".parametrizations.weight.original"
    layout.whole(own + "0", own + "0", out, 1, 1)
    layout.whole(own + "1", own + "1", out, into, kernel)
    _vectors(layout, out, name + ".bias")


def _vectors(layout: Layout, size: int, *names: str) -> None:
    for name in names:
        layout.whole(name, name, size)


def _text_layout(layout: Layout, config: VitsConfig) -> None:
    hidden, root = config.hidden, "text_encoder."
    layout.whole(root + "embed_tokens.weight", root + "embed_tokens.weight", config.vocab, hidden)
    for i in range(config.layers):
        name = f"{root}encoder.layers.{i}."
        for part in ("q", "k", "v", "out"):
            weight = f"{name}attention.{part}_proj.weight"
            layout.whole(weight, weight, hidden, hidden)
            _vectors(layout, hidden, f"{name}attention.{part}_proj.bias")
        for part in ("k", "v"):
            relative = f"{name}attention.emb_rel_{part}"
            layout.whole(relative, relative, 1, 2 * config.window + 1, hidden // config.heads)
        _conv(layout, name + "feed_forward.conv_1", config.mlp, hidden, config.mlp_kernel)
        _conv(layout, name + "feed_forward.conv_2", hidden, config.mlp, config.mlp_kernel)
        for norm in ("layer_norm", "final_layer_norm"):
            _vectors(layout, hidden, f"{name}{norm}.weight", f"{name}{norm}.bias")
    _conv(layout, root + "project", 2 * config.flow_size, hidden, 1)


def _duration_layout(layout: Layout, config: VitsConfig) -> None:
    hidden, root = config.hidden, "duration_predictor."
    for name in ("conv_pre", "conv_proj"):
        _conv(layout, root + name, hidden, hidden, 1)
    _separable_layout(layout, root + "conv_dds.", config)
    for name in ("translate", "log_scale"):
        layout.whole(f"{root}flows.0.{name}", f"{root}flows.0.{name}", 2, 1)
    for i in range(2, config.duration_flows + 1):
        _conv(layout, f"{root}flows.{i}.conv_pre", hidden, 1, 1)
        _separable_layout(layout, f"{root}flows.{i}.conv_dds.", config)
        _conv(layout, f"{root}flows.{i}.conv_proj", 3 * config.duration_bins - 1, hidden, 1)


def _separable_layout(layout: Layout, name: str, config: VitsConfig) -> None:
    hidden = config.hidden
    for i in range(config.duration_layers):
        _conv(layout, f"{name}convs_dilated.{i}", hidden, 1, config.duration_kernel)
        _conv(layout, f"{name}convs_pointwise.{i}", hidden, hidden, 1)
        for norm in (f"{name}norms_1.{i}", f"{name}norms_2.{i}"):
            _vectors(layout, hidden, norm + ".weight", norm + ".bias")


def _flow_layout(layout: Layout, name: str, config: VitsConfig) -> None:
    hidden, half = config.hidden, config.flow_size // 2
    _conv(layout, name + "conv_pre", hidden, half, 1)
    for i in range(config.wavenet_layers):
        last = i == config.wavenet_layers - 1
        _normed_conv(layout, f"{name}wavenet.in_layers.{i}", 2 * hidden, hidden, config.wavenet_kernel)
        _normed_conv(layout, f"{name}wavenet.res_skip_layers.{i}", hidden if last else 2 * hidden, hidden, 1)
    _conv(layout, name + "conv_post", half, hidden, 1)


def _decoder_layout(layout: Layout, config: VitsConfig) -> None:
    channels = config.channels
    _conv(layout, "decoder.conv_pre", channels, config.flow_size, 7)
    for i, kernel in enumerate(config.rate_kernels):
        up = f"decoder.upsampler.{i}"
        layout.whole(up + ".weight", up + ".weight", channels, channels // 2, kernel)
        channels //= 2
        _vectors(layout, channels, up + ".bias")
        for j, (width, dilations) in enumerate(config.kernels):
            block = f"decoder.resblocks.{i * len(config.kernels) + j}."
            for part in _parts(config):
                for k in range(len(dilations)):
                    _conv(layout, f"{block}{part}.{k}", channels, channels, width)
    _conv(layout, "decoder.conv_post", 1, channels, 7, bias=False)


def _parts(config: VitsConfig) -> tuple[str, ...]:
    """Names of a residual block's convolutions."""
    return ("convs1", "convs2") if config.resblock_version == 1 else ("convs",)
