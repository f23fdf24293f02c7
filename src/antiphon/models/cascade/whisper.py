"""Whisper: an encoder of 30 s windows, and a decoder whose layers attend to what it made.

With a silent tail, only what is said is encoded: positions behind it are those of a window of silence, whose
keys and values are computed once. That is exact where the tail's own states don't depend on what is said,
which holds for no model but is close for this one; without a tail a window is transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from antiphon.core.errors import CheckpointError
from antiphon.core.facts import StagePrompt
from antiphon.models.cascade.served import check_served
from antiphon.models.decoder_stage import Positions, plain_positions
from antiphon.models.layout import Layout
from antiphon.nn.attention import Attention, paged_attention
from antiphon.nn.backends import Backend
from antiphon.nn.fresh import fresh
from antiphon.nn.graphs import Capture
from antiphon.nn.layers import Table
from antiphon.nn.products import in_whole_panels, linear, pack, pack_halves
from antiphon.nn.step import StepInputs

FRAMES_PER_POSITION = 2
"""Mel frames of 10 ms that the second convolution takes together."""

Pair = tuple[Tensor, Tensor]
LayOut = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """Sizes. `positions`: of the encoder, 20 ms each; `targets`: tokens of the decoder, prompt included.

    prompt       ids that a transcript begins with
    languages    ids of those that it hears by their codes, its own first; None: it hears only that one
    previous     id before the text that a transcript follows; None: generation_config.json names none
    suppressed   ids that are never drawn; `begin_suppressed`: nor as the first
    no_speech    id that stands for a recording in which nobody speaks; None: it has none, or it is not asked
    no_speech_threshold  a recording for which that is more probable, where a transcript starts, has none
    """

    hidden: int
    heads: int
    decoder_heads: int
    encoder_layers: int
    decoder_layers: int
    encoder_mlp: int
    decoder_mlp: int
    mel_bins: int
    positions: int
    targets: int
    vocab: int
    prompt: tuple[int, ...]
    languages: Mapping[str, int | None]
    previous: int | None
    suppressed: tuple[int, ...]
    begin_suppressed: tuple[int, ...]
    stop_ids: tuple[int, ...]
    no_speech: int | None = None
    no_speech_threshold: float = 1.0

    @classmethod
    def from_dict(
        cls,
        config: Mapping[str, Any],
        generation: Mapping[str, Any],
        no_speech_threshold: float | None = None,
    ) -> Self:
        """From config.json and generation_config.json; raises CheckpointError. no_speech_threshold: None:
        silence is written down as something."""
        known = {"activation_function": ("gelu",), "scale_embedding": (False,)}
        check_served("transcriber", config, "whisper", known)
        stops = (generation.get("eos_token_id", config.get("eos_token_id")),)
        plain = generation.get("no_timestamps_token_id")
        no_speech = None if no_speech_threshold is None or plain is None else plain - 1
        try:
            return cls(
                hidden=config["d_model"],
                heads=config["encoder_attention_heads"],
                decoder_heads=config["decoder_attention_heads"],
                encoder_layers=config["encoder_layers"],
                decoder_layers=config["decoder_layers"],
                encoder_mlp=config["encoder_ffn_dim"],
                decoder_mlp=config["decoder_ffn_dim"],
                mel_bins=config["num_mel_bins"],
                positions=config["max_source_positions"],
                targets=config["max_target_positions"],
                vocab=config["vocab_size"],
                prompt=_prompt(config, generation),
                languages=_languages(generation),
                previous=generation.get("prev_sot_token_id"),
                suppressed=tuple(generation.get("suppress_tokens") or ()),
                begin_suppressed=tuple(generation.get("begin_suppress_tokens") or ()),
                stop_ids=stops if no_speech is None else (*stops, no_speech),
                no_speech=no_speech,
                no_speech_threshold=1.0 if no_speech_threshold is None else no_speech_threshold,
            )
        except KeyError as error:
            raise CheckpointError(f"transcriber: config.json has no {error}") from None

    def prompt_of(self, language: str | None) -> tuple[int, ...]:
        """Ids that a transcript in a language begins with; None: its own. Raises KeyError for others."""
        number = None if language is None else self.languages[language]
        return self.prompt if number is None else (self.prompt[0], number, *self.prompt[2:])


def _languages(generation: Mapping[str, Any]) -> dict[str, int | None]:
    if not generation.get("is_multilingual"):
        return {"en": None}
    known = {name.strip("<|>"): number for name, number in (generation.get("lang_to_id") or {}).items()}
    own = (generation.get("language") or "en").strip("<|>")
    return {own: known[own], **known} if own in known else known


def _prompt(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """Start of transcript, then language and task where the model has several, and no time stamps."""
    start = generation.get("decoder_start_token_id", config["decoder_start_token_id"])
    ids = [start]
    if generation.get("is_multilingual"):
        language = generation.get("language") or "<|en|>"
        languages = generation.get("lang_to_id") or {}
        language = language if language in languages else f"<|{language}|>"
        if language not in languages:
            raise CheckpointError(f"transcriber: generation_config.json has no language {language}")
        ids += [languages[language], generation["task_to_id"]["transcribe"]]
    plain = generation.get("no_timestamps_token_id")
    return (*ids, plain) if plain is not None else tuple(ids)


# -- parameters ------------------------------------------------------------------------------------------


ENCODER, DECODER = "encoder.", "decoder."
"""What their parameters begin with."""


def encoder_layout(layout: Layout, config: WhisperConfig) -> None:
    """Parameters by the names of released checkpoints."""
    hidden, theirs = config.hidden, "model.encoder."
    for name, width in (("conv1", config.mel_bins), ("conv2", hidden)):
        layout.whole(f"{ENCODER}{name}.weight", f"{theirs}{name}.weight", hidden, width, 3)
        layout.whole(f"{ENCODER}{name}.bias", f"{theirs}{name}.bias", hidden)
    layout.whole(ENCODER + "positions", theirs + "embed_positions.weight", config.positions, hidden)
    for i in range(config.encoder_layers):
        name = f"layers.{i}."
        _attention(layout, f"{ENCODER}{name}self.", f"{theirs}{name}self_attn", hidden)
        _mlp(layout, ENCODER + name, theirs + name, hidden, config.encoder_mlp)
    _norm(layout, ENCODER + "norm", theirs + "layer_norm", hidden)


def decoder_layout(layout: Layout, config: WhisperConfig) -> None:
    """The decoder, whose head is its embedding."""
    hidden, theirs = config.hidden, "model.decoder."
    layout.whole(DECODER + "embedding", theirs + "embed_tokens.weight", config.vocab, hidden)
    layout.whole(DECODER + "positions", theirs + "embed_positions.weight", config.targets, hidden)
    for i in range(config.decoder_layers):
        name = f"layers.{i}."
        _attention(layout, f"{DECODER}{name}self.", f"{theirs}{name}self_attn", hidden)
        _attention(layout, f"{DECODER}{name}cross.", f"{theirs}{name}encoder_attn", hidden)
        _mlp(layout, DECODER + name, theirs + name, hidden, config.decoder_mlp)
    _norm(layout, DECODER + "norm", theirs + "layer_norm", hidden)


def _attention(layout: Layout, own: str, theirs: str, hidden: int) -> None:
    _norm(layout, own + "norm", theirs + "_layer_norm", hidden)
    for name in ("q", "k", "v", "out"):
        layout.whole(own + name, f"{theirs}.{name}_proj.weight", hidden, hidden)
        if name != "k":
            layout.whole(f"{own}{name}_bias", f"{theirs}.{name}_proj.bias", hidden)


def _mlp(layout: Layout, own: str, theirs: str, hidden: int, size: int) -> None:
    _norm(layout, own + "norm", theirs + "final_layer_norm", hidden)
    layout.whole(own + "fc1", theirs + "fc1.weight", size, hidden)
    layout.whole(own + "fc1_bias", theirs + "fc1.bias", size)
    layout.whole(own + "fc2", theirs + "fc2.weight", hidden, size)
    layout.whole(own + "fc2_bias", theirs + "fc2.bias", hidden)


def _norm(layout: Layout, own: str, theirs: str, hidden: int) -> None:
    layout.whole(own, theirs + ".weight", hidden)
    layout.whole(own + "_bias", theirs + ".bias", hidden)


# -- parts of layers -------------------------------------------------------------------------------------


class _Norm:
    """Over the last dimension, as torch's LayerNorm."""

    def __init__(self, params: Mapping[str, Tensor], name: str) -> None:
        self.weight, self.bias = params[name], params[name + "_bias"]

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


class _Attention:
    """The four products of one attention, its norm before them. Keys have no bias."""

    def __init__(self, params: Mapping[str, Tensor], prefix: str, heads: int, lay_out: LayOut) -> None:
        self.norm = _Norm(params, prefix + "norm")
        self._weights = {name: lay_out(params[prefix + name]) for name in ("q", "k", "v", "out")}
        self._biases = {name: params[f"{prefix}{name}_bias"] for name in ("q", "v", "out")}
        self._heads = heads

    def of(self, name: str, h: Tensor) -> Tensor:
        """q, k or v of normalised states [n, hidden] -> [n, heads, d]."""
        return self._product(name, h).view(len(h), self._heads, -1)

    def out(self, attended: Tensor) -> Tensor:
        """[n, heads, d] -> [n, hidden]."""
        return self._product("out", attended.flatten(1))

    def _product(self, name: str, h: Tensor) -> Tensor:
        return linear(h, self._weights[name], self._biases.get(name))


class _Mlp:
    def __init__(self, params: Mapping[str, Tensor], prefix: str, lay_out: LayOut) -> None:
        self._norm = _Norm(params, prefix + "norm")
        self._fc1, self._bias1 = lay_out(params[prefix + "fc1"]), params[prefix + "fc1_bias"]
        self._fc2, self._bias2 = lay_out(params[prefix + "fc2"]), params[prefix + "fc2_bias"]

    def __call__(self, x: Tensor) -> Tensor:
        return linear(F.gelu(linear(self._norm(x), self._fc1, self._bias1)), self._fc2, self._bias2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [n, heads, d] over k and v [m, heads, d], all of them -> [n, heads, d]."""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


# -- the encoder -----------------------------------------------------------------------------------------


class WhisperEncoder:
    """Mel frames to states, 20 ms each."""

    def __init__(self, config: WhisperConfig, params: Mapping[str, Tensor]) -> None:
        self.config = config
        self._convs = [
            (params[f"{ENCODER}{n}.weight"], params[f"{ENCODER}{n}.bias"]) for n in ("conv1", "conv2")
        ]
        self._positions = params[ENCODER + "positions"]
        self._layers = [
            (
                _Attention(params, f"{ENCODER}layers.{i}.self.", config.heads, pack),
                _Mlp(params, f"{ENCODER}layers.{i}.", pack),
            )
            for i in range(config.encoder_layers)
        ]
        self._norm = _Norm(params, ENCODER + "norm")
        self.device, self.dtype = self._positions.device, self._positions.dtype

    def window(self, mel: Tensor) -> tuple[Tensor, list[Pair]]:
        """A whole window's mel frames [bins, 2 * positions] -> states [positions, hidden], and each layer's
        keys and values [positions, heads, d]."""
        return self._run(self._embed(mel, self.config.positions), [])

    def head(self, mel: Tensor, tail: Sequence[Pair]) -> Tensor:
        """The first n positions of a window, of whose mel frames [bins, 2 * n + 1] are given: behind them
        stands the rest of the window that `tail` is of. Returns [n, hidden]."""
        n = (mel.shape[1] - 1) // FRAMES_PER_POSITION
        return self._run(self._embed(mel, n), [(k[n:], v[n:]) for k, v in tail])[0]

    def _embed(self, mel: Tensor, n: int) -> Tensor:
        """The first n positions' inputs."""
        x = mel.to(self._positions)[None]
        for stride, (weight, bias) in enumerate(self._convs, 1):
            x = F.gelu(F.conv1d(x, weight, bias, stride=stride, padding=1))
        return x[0].t()[:n] + self._positions[:n]

    def _run(self, x: Tensor, tail: Sequence[Pair]) -> tuple[Tensor, list[Pair]]:
        made: list[Pair] = []
        for i, (attention, mlp) in enumerate(self._layers):
            h = attention.norm(x)
            q, k, v = (attention.of(name, h) for name in "qkv")
            made.append((k, v))
            if tail:
                k, v = torch.cat((k, tail[i][0])), torch.cat((v, tail[i][1]))
            x = x + attention.out(_attend(q, k, v))
            x = x + mlp(x)
        return self._norm(x), made


# -- the decoder -----------------------------------------------------------------------------------------


class WhisperDecoder:
    """Writes a transcript, token by token. Implements `engine.family.CrossModel`."""

    def __init__(self, config: WhisperConfig, params: Mapping[str, Tensor], tail: Tensor | None) -> None:
        """tail: an encoder's output for silence [positions, hidden]; None: whole windows are encoded."""
        self.config, self.tail = config, tail
        self.payload_size, self.capture_layer, self.keeps_all = 0, None, False
        embedding, self._positions = params[DECODER + "embedding"], params[DECODER + "positions"]
        self._head = pack_halves(in_whole_panels(embedding))
        self._embedding = Table(self._head if self._head.dim() == 3 else embedding)
        names = [f"{DECODER}layers.{i}." for i in range(config.decoder_layers)]
        self._layers = [
            (
                _Attention(params, name + "self.", config.decoder_heads, pack_halves),
                _Attention(params, name + "cross.", config.decoder_heads, pack_halves),
                _Mlp(params, name, pack_halves),
            )
            for name in names
        ]
        self._norm = _Norm(params, DECODER + "norm")
        self._attention: Attention = paged_attention
        self.device, self.dtype = self._positions.device, self._positions.dtype
        self.vocab_size, self.cross_length = config.vocab, config.positions
        self._suppressed = torch.tensor(config.suppressed, dtype=torch.int64, device=self.device)
        self._begin_suppressed = torch.tensor(config.begin_suppressed, dtype=torch.int64, device=self.device)

    def use_backend(self, backend: Backend, capture: Capture | None = None) -> None:
        """Attention is the back-end's; steps are never captured."""
        self._attention = backend.create()

    def new_pages(self, num_blocks: int, block_size: int) -> list[Pair]:
        """Zeroed keys and values of every layer, each [num_blocks, block_size, heads, d]."""
        heads = self.config.decoder_heads
        shape = num_blocks, block_size, heads, self.config.hidden // heads
        like = self._positions.dtype, self._positions.device
        return [(fresh(shape, *like), fresh(shape, *like)) for _ in self._layers]

    def positions(self, prompt: StagePrompt) -> Positions:
        """Three rows, of which the second differs from the first at the prompt's last token."""
        positions, following = plain_positions(prompt)
        positions = positions.copy()
        positions[1, -1] += 1
        return positions, following

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [n] -> [n, hidden]."""
        return self._embedding.rows(ids)

    def cross_kv(self, states: Tensor) -> list[Pair]:
        """The encoder's states [m, hidden] -> each layer's keys and values [m, heads, d]."""
        return [(cross.of("k", states), cross.of("v", states)) for _, cross, _ in self._layers]

    def forward(self, step: StepInputs) -> tuple[Tensor, None]:
        """One step. Beside each token's hidden state stand 1 if what is drawn after it is a transcript's
        first token, and 1 if nobody speaks in the recording: [m, hidden + 2]."""
        positions = (step.positions[0] if step.positions.dim() == 2 else step.positions).long()
        x = step.x + self._positions[positions]
        for (attention, cross, mlp), own, other in zip(self._layers, step.kv, step.cross, strict=True):
            h = attention.norm(x)
            q, k, v = (attention.of(name, h) for name in "qkv")
            x = x + attention.out(own.attend(q, k, v, self._attention))
            q = cross.of("q", cross.norm(x))
            x = x + cross.out(self._attention(q, other.k_pages, other.v_pages, other.batch))
            x = x + mlp(x)
        is_marked = step.positions[1] != step.positions[0] if step.positions.dim() == 2 else positions < 0
        begins = is_marked.to(x)[:, None]
        if step.wanted is None:
            return torch.cat((self._norm(x), begins, torch.zeros_like(begins)), 1), None
        begins, silent = begins[step.wanted], torch.zeros_like(begins[step.wanted])
        first = begins[:, 0].nonzero()[:, 0]
        if len(first):
            silent[first] = self._is_silent(x, step.wanted[first])
        return torch.cat((self._norm(x[step.wanted]), begins, silent), 1), None

    def _is_silent(self, x: Tensor, ends: Tensor) -> Tensor:
        """Of prompts whose last tokens are these: is it more probable than the threshold, where a transcript
        starts, that nobody speaks? [m, 1]. From there on, a prompt runs in one step."""
        if self.config.no_speech is None:
            return x.new_zeros(len(ends), 1)
        starts = (ends - (len(self.config.prompt) - 1)).clamp(min=0)
        odds = self._scores(self._norm(x[starts])).softmax(-1)[:, self.config.no_speech]
        return (odds > self.config.no_speech_threshold).to(x)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """What `forward` returned -> fp32 [r, vocab], what is never drawn at -inf."""
        scores = self._scores(hidden[:, :-2].contiguous())
        scores[:, self._suppressed] = -torch.inf
        first = torch.where(hidden[:, -2:-1] > 0, -torch.inf, 0.0).float()
        scores[:, self._begin_suppressed] += first
        if self.config.no_speech is None:
            return scores
        is_silent = hidden[:, -1:] > 0
        scores.masked_fill_(is_silent, -torch.inf)
        scores[:, self.config.no_speech] = torch.where(is_silent[:, 0], 0.0, -torch.inf).float()
        return scores

    def _scores(self, hidden: Tensor) -> Tensor:
        """Normalised states [r, hidden] -> fp32 [r, vocab]."""
        return linear(hidden, self._head)[:, : self.vocab_size].float()
