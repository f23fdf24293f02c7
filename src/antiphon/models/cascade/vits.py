"""VITS: symbols to frames (text encoder, durations, flow), and frames to sound (HiFi-GAN), one voice.

Sound is made window by window: what a frame sounds like depends on `context` frames on each side, so a window
with so many around it sounds as in one decode of all. Parameters go by the names of transformers' files.
Piper's voices have HiFi-GAN's second kind of residual block (`resblock_version` 2 in config.json).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import log, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.models.cascade.vits_layout import VitsConfig
from antiphon.nn.convolutions import PackedConv, as_ordinary, can_pack

LEAST_BIN = 1e-3
"""Of a spline's widths, heights and derivatives."""
FINAL_SLOPE = 0.01
"""Of the leaky ReLU before the last convolution."""


class Frames:
    """A phrase's frames. The flow makes them of its latents [flow_size, n] as they are asked for: the first
    sound waits for no more of it than it needs."""

    def __init__(self, latents: Tensor, flow: Callable[[Tensor], Tensor], context: int) -> None:
        """context: frames on each side of one that decide with it what the flow makes of it."""
        self._latents, self._flow, self._context = latents, flow, context
        self._made = latents[:, :0]

    def __len__(self) -> int:
        return self._latents.shape[1]

    def until(self, end: int) -> Tensor:
        """The first frames, so many at least, [flow_size, n]."""
        start = self._made.shape[1]
        if start < end:
            if start or len(self) <= end + 2 * self._context:
                end = len(self)  # what is computed twice around a cut would be more than is spared
            first, last = max(start - self._context, 0), end + self._context
            made = self._flow(self._latents[:, first:last])[:, start - first : end - first]
            self._made = torch.cat((self._made, made), 1)
        return self._made


class Vits:
    """One phrase at a time to frames; windows of any phrases together to sound.

    A phrase is rows [n, channels], and a convolution over it one product with its unfolded rows. Windows are
    [b, channels, n]; on a CPU in fp32 their convolutions have weights laid out once, and the channels of a
    frame side by side in memory.
    """

    def __init__(self, config: VitsConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self._params = {name: _unfolded(name, tensor) for name, tensor in folded(params).items()}
        table = self._params["text_encoder.embed_tokens.weight"]
        self.device, self.dtype = table.device, table.dtype
        self._packs = table.device.type == "cpu" and table.dtype is torch.float32 and can_pack()
        self._packed: dict[str, PackedConv] = {}

    # -- symbols to frames ---------------------------------------------------------------------------

    def frames(self, symbols: Sequence[int], seed: int) -> tuple[list[int], Tensor]:
        """A phrase's symbols, one or more, to how many frames each lasts, and all frames [flow_size, n]."""
        counts, frames = self.phrase(symbols, seed)
        return counts, frames.until(len(frames))

    def phrase(self, symbols: Sequence[int], seed: int) -> tuple[list[int], Frames]:
        """A phrase's symbols, one or more, to how many frames each lasts, and its frames.

        The noise of a voice that has any is a function of `seed`.
        """
        ids = torch.tensor(list(symbols), device=self.device)
        noise = torch.Generator().manual_seed(seed & (1 << 63) - 1)
        hidden, means, spreads = self._encode(ids)
        logs = self._durations(hidden, self._noise(noise, self.config.duration_noise, 2, len(ids)))
        counts = torch.ceil(torch.exp(logs) / self.config.speaking_rate).long()
        if not int(counts.sum()):
            counts[-1] = 1
        means, spreads = (part.repeat_interleave(counts, 1) for part in (means, spreads))
        x = means + self._noise(noise, self.config.noise, *means.shape) * torch.exp(spreads)
        return counts.tolist(), Frames(x, self._flow, self.config.flow_context)

    def _noise(self, generator: torch.Generator, scale: float, *shape: int) -> Tensor:
        if not scale:
            return torch.zeros(shape, device=self.device, dtype=self.dtype)
        return (torch.randn(shape, generator=generator) * scale).to(self.device, self.dtype)

    def _encode(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """int64 [n] -> hidden [n, hidden], means and log deviations [flow_size, n]."""
        config = self.config
        x = F.embedding(ids, self._of("text_encoder.embed_tokens.weight")) * sqrt(config.hidden)
        for i in range(config.layers):
            name = f"text_encoder.encoder.layers.{i}."
            x = self._norm(name + "layer_norm", x + self._attention(name + "attention.", x), config.eps)
            x = self._norm(name + "final_layer_norm", x + self._mlp(name + "feed_forward.", x), config.eps)
        means, spreads = self._conv("text_encoder.project", x).t().split(config.flow_size)
        return x, means, spreads

    def _attention(self, name: str, x: Tensor) -> Tensor:
        """Self-attention with relative positions up to the window, [n, hidden] -> [n, hidden]."""
        n, window = len(x), self.config.window
        q, k, v = (self._linear(f"{name}{part}_proj", x).view(n, self.config.heads, -1) for part in "qkv")
        q = q.transpose(0, 1) * (q.shape[-1] ** -0.5)
        place = torch.arange(n, device=self.device)
        far = place - place[:, None]
        near, index = (far.abs() <= window), (far + window).clamp(0, 2 * window)
        scores = q @ k.permute(1, 2, 0)
        by_distance = q @ self._of(name + "emb_rel_k")[0].t()
        scores = scores + by_distance.gather(2, index.expand_as(scores)) * near
        weights = scores.softmax(-1)
        near_weights = weights.new_zeros(*weights.shape[:2], 2 * window + 1)
        near_weights.scatter_add_(2, index.expand_as(weights), weights * near)
        out = weights @ v.transpose(0, 1) + near_weights @ self._of(name + "emb_rel_v")[0]
        return self._linear(name + "out_proj", out.transpose(0, 1).flatten(1))

    def _mlp(self, name: str, x: Tensor) -> Tensor:
        kernel = self.config.mlp_kernel
        pad = 0, 0, (kernel - 1) // 2, kernel // 2
        h = torch.relu(self._conv(name + "conv_1", F.pad(x, pad)))
        return self._conv(name + "conv_2", F.pad(h, pad))

    def _durations(self, hidden: Tensor, latents: Tensor) -> Tensor:
        """hidden [n, hidden] and noise [2, n] -> log durations [n]."""
        root = "duration_predictor."
        given = self._separable(root + "conv_dds.", self._conv(root + "conv_pre", hidden))
        given = self._conv(root + "conv_proj", given)
        for i in range(self.config.duration_flows, 1, -1):
            latents = self._spline_flow(f"{root}flows.{i}.", latents.flip(0), given)
        latents = latents.flip(0) - self._of(root + "flows.0.translate")
        return (latents * torch.exp(-self._of(root + "flows.0.log_scale")))[0]

    def _spline_flow(self, name: str, latents: Tensor, given: Tensor) -> Tensor:
        kept, moved = latents.split(1)
        h = self._separable(name + "conv_dds.", self._conv(name + "conv_pre", kept.t()) + given)
        knots = self._conv(name + "conv_proj", h)
        bins, scale = self.config.duration_bins, sqrt(self.config.hidden)
        widths, heights, slopes = knots.split((bins, bins, bins - 1), 1)
        moved = inverse_spline(moved[0], widths / scale, heights / scale, slopes, self.config.tail_bound)
        return torch.cat((kept, moved[None]))

    def _separable(self, name: str, x: Tensor) -> Tensor:
        """Dilated depth-separable convolutions, [n, hidden] -> [n, hidden]."""
        kernel = self.config.duration_kernel
        for i in range(self.config.duration_layers):
            dilation = kernel**i
            edge = (kernel - 1) * dilation // 2
            dilated, padded = f"{name}convs_dilated.{i}", F.pad(x, (0, 0, edge, edge))
            h = self._of(dilated + ".bias").expand_as(x)
            for tap, weight in enumerate(self._of(dilated + ".weight").unbind(2)):
                h = torch.addcmul(h, padded[tap * dilation :][: len(x)], weight[:, 0])
            h = F.gelu(self._norm(f"{name}norms_1.{i}", h))
            h = self._conv(f"{name}convs_pointwise.{i}", h)
            x = x + F.gelu(self._norm(f"{name}norms_2.{i}", h))
        return x

    def _flow(self, x: Tensor) -> Tensor:
        """The prior's latents [flow_size, n] to the decoder's frames."""
        half, x = self.config.flow_size // 2, x.t()
        for i in range(self.config.num_flows - 1, -1, -1):
            kept, moved = x.flip(1).split(half, 1)
            name = f"flow.flows.{i}."
            h = self._wavenet(name + "wavenet.", self._conv(name + "conv_pre", kept))
            x = torch.cat((kept, moved - self._conv(name + "conv_post", h)), 1)
        return x.t()

    def _wavenet(self, name: str, x: Tensor) -> Tensor:
        config, total = self.config, torch.zeros_like(x)
        for i in range(config.wavenet_layers):
            dilation = config.wavenet_dilation**i
            edge = (config.wavenet_kernel - 1) * dilation // 2
            h = self._conv(f"{name}in_layers.{i}", F.pad(x, (0, 0, edge, edge)), dilation)
            wave, gate = h.split(config.hidden, 1)
            h = self._conv(f"{name}res_skip_layers.{i}", torch.tanh(wave) * torch.sigmoid(gate))
            if i < config.wavenet_layers - 1:
                step, h = h.split(config.hidden, 1)
                x = x + step
            total = total + h
        return total

    # -- frames to sound -----------------------------------------------------------------------------

    def sound(self, frames: Tensor) -> Tensor:
        """Windows [b, flow_size, n] -> fp [b, n * hop]."""
        config = self.config
        x = self._convs("decoder.conv_pre", frames, 3)
        for i, (rate, kernel) in enumerate(zip(config.rates, config.rate_kernels, strict=True)):
            x = self._upsampled(f"decoder.upsampler.{i}", F.leaky_relu(x, config.slope), rate, kernel)
            first = i * len(config.kernels)
            blocks = [
                self._block(f"decoder.resblocks.{first + j}.", x, *block)
                for j, block in enumerate(config.kernels)
            ]
            x = reduce(torch.add, blocks) / len(blocks)
        x = F.leaky_relu(x, FINAL_SLOPE)
        return torch.tanh(self._convs("decoder.conv_post", x, 3))[:, 0]

    def _upsampled(self, name: str, x: Tensor, rate: int, kernel: int) -> Tensor:
        """A transposed convolution, [b, channels, n] -> [b, fewer channels, n * rate]."""
        weight, bias, edge = self._of(name + ".weight"), self._of(name + ".bias"), (kernel - rate) // 2
        if not self._packs or kernel % rate or (kernel - rate) % 2:
            return F.conv_transpose1d(x, weight, bias, stride=rate, padding=edge)
        if name not in self._packed:
            self._packed[name] = PackedConv(*as_ordinary(weight, bias, rate))
        more = kernel // rate - 1
        made = self._packed[name](F.pad(x.transpose(1, 2), (0, 0, more, more)))
        made = made.reshape(len(x), -1, weight.shape[1])
        return made[:, edge : edge + x.shape[2] * rate].transpose(1, 2)

    def _block(self, name: str, x: Tensor, kernel: int, dilations: Sequence[int]) -> Tensor:
        """One of HiFi-GAN's residual blocks."""
        slope, half = self.config.slope, (kernel - 1) // 2
        for i, dilation in enumerate(dilations):
            if self.config.resblock_version == 2:
                x = x + self._convs(f"{name}convs.{i}", F.leaky_relu(x, slope), half * dilation, dilation)
                continue
            h = self._convs(f"{name}convs1.{i}", F.leaky_relu(x, slope), half * dilation, dilation)
            x = x + self._convs(f"{name}convs2.{i}", F.leaky_relu(h, slope), half)
        return x

    # -- parameters ----------------------------------------------------------------------------------

    def _of(self, name: str) -> Tensor:
        return self._params[name]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._of(name + ".weight"), self._of(name + ".bias"))

    def _norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        weight = self._of(name + ".weight")
        return F.layer_norm(x, weight.shape, weight, self._of(name + ".bias"), eps)

    def _conv(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        """Over a phrase's rows, [n, in] -> [n - (taps - 1) * dilation, out]."""
        weight, width = self._of(name + ".weight"), x.shape[1]
        taps = weight.shape[1] // width
        if taps > 1:
            x, shape = x.contiguous(), (len(x) - (taps - 1) * dilation, taps, width)
            x = x.as_strided(shape, (width, width * dilation, 1)).flatten(1)
        return F.linear(x, weight, self._of(name + ".bias"))

    def _convs(self, name: str, x: Tensor, padding: int, dilation: int = 1) -> Tensor:
        """Over windows, [b, in, n] -> [b, out, n]."""
        weight, bias = self._of(name + ".weight"), self._params.get(name + ".bias")
        if not self._packs:
            return F.conv1d(x, weight, bias, padding=padding, dilation=dilation)
        if name not in self._packed:
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            self._packed[name] = PackedConv(weight, bias, dilation)
        return self._packed[name](F.pad(x.transpose(1, 2), (0, 0, padding, padding))).transpose(1, 2)


def _unfolded(name: str, tensor: Tensor) -> Tensor:
    """A convolution's weight over a phrase [out, in, taps] -> [out, taps * in]; all else as it is."""
    is_product = name.endswith(".weight") and tensor.dim() == 3 and ".convs_dilated." not in name
    if not is_product or name.startswith("decoder."):
        return tensor
    return tensor.transpose(1, 2).flatten(1).contiguous()


def folded(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters with weights in the place of lengths and directions."""
    mark = ".parametrizations.weight.original"
    made = {name: tensor for name, tensor in params.items() if mark not in name}
    for name in (name.removesuffix("0") for name in params if name.endswith(mark + "0")):
        length, direction = params[name + "0"], params[name + "1"]
        norm = direction.flatten(1).norm(dim=1).view(-1, 1, 1)
        made[name.removesuffix(mark) + ".weight"] = direction * (length / norm)
    return made


def inverse_spline(y: Tensor, widths: Tensor, heights: Tensor, slopes: Tensor, bound: float) -> Tensor:
    """y [n] back through monotonic rational-quadratic splines of b bins over [-bound, bound] (Durkan et al.,
    Neural Spline Flows, eq. 6-8); outside of that the identity. widths and heights [n, b], slopes [n, b - 1],
    not normalised."""
    edge = log(torch.e ** (1 - LEAST_BIN) - 1)
    slopes = LEAST_BIN + F.softplus(F.pad(slopes, (1, 1), value=edge))
    left, width = _bins(widths, bound)
    low, height = _bins(heights, bound)
    inside = (y >= -bound) & (y <= bound)
    at = torch.where(inside, y, torch.zeros_like(y))[:, None]
    bin_of = (at >= low).sum(1, keepdim=True) - 1
    left, width, low, height, slope = (
        part.gather(1, bin_of)[:, 0] for part in (left, width, low, height, slopes[:, :-1])
    )
    next_slope = slopes[:, 1:].gather(1, bin_of)[:, 0]
    delta, above = height / width, at[:, 0] - low
    bend = slope + next_slope - 2 * delta
    a = height * (delta - slope) + above * bend
    b = height * slope - above * bend
    root = 2 * (-delta * above) / (-b - torch.sqrt(b * b + 4 * a * delta * above))
    return torch.where(inside, root * width + left, y)


def _bins(raw: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Where each bin begins, and its size: [n, b] each."""
    sizes = LEAST_BIN + (1 - LEAST_BIN * raw.shape[1]) * raw.softmax(1)
    ends = F.pad(sizes.cumsum(1), (1, 0)) * (2 * bound) - bound
    ends[:, 0], ends[:, -1] = -bound, bound
    return ends[:, :-1], ends[:, 1:] - ends[:, :-1]
