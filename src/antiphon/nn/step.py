"""One step of a decoder, as runners and models hand it on, and what a decoder asks of a back-end.

Operators, compiled CPU kernels and CUDA graphs all answer the same call (`Steps`); flashinfer and triton are
attentions that operators and graphs are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from antiphon.nn.attention import LayerKv
from antiphon.nn.transfers import Halves, LayerExchanges


@dataclass(slots=True)
class StepInputs:
    """The flat tokens of many sequences, n in all, and what is asked of them.

    x          [n, hidden], only read
    positions  [3, n], or [n] where the three are equal
    kv         pages and batch of each layer; the step writes its keys and values through them
    wanted     int64 [m], tokens whose hidden states are returned; None: all
    capture    hidden states that are returned of all tokens, counted as transformers' `hidden_states`: i is
               the output of layer i - 1 before any deepstack addition, the number of layers is the final
               norm's output; None: none
    deepstack  [v, hidden] for each of the first layers, added after it to the tokens `visual`
    visual     int64 [v]
    transfers  tokens that leave and enter between layers; what is returned for one that left is undefined
    cross      of a decoder behind an encoder, per layer: pages of what the encoder made, only read, and a
               batch in which every token is a row of its own that sees all of it
    """

    x: Tensor
    positions: Tensor
    kv: Sequence[LayerKv]
    wanted: Tensor | None = None
    capture: int | None = None
    deepstack: Sequence[Tensor] = ()
    visual: Tensor | None = None
    transfers: LayerExchanges | None = None
    cross: Sequence[LayerKv] = ()

    @property
    def narrow(self) -> Tensor | None:
        """The tokens that are computed past the last layer's attention, int64 [m]; None: all of them."""
        layers = len(self.kv)
        if self.capture == layers or len(self.deepstack) >= layers or self.transfers is not None:
            return None
        return self.wanted

    def pick(self, hidden: Tensor) -> Tensor:
        """What is returned of the hidden states of the tokens `narrow`, or of all."""
        return hidden if self.wanted is None or self.narrow is not None else hidden[self.wanted]


class DecoderSizes(Protocol):
    """A decoder's, as `models.decoder_config.DecoderConfig` has them."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def rms_eps(self) -> float: ...
    @property
    def is_moe(self) -> bool: ...
    @property
    def qkv_rows(self) -> tuple[int, int, int]: ...
    @property
    def kv_shape(self) -> tuple[int, int]: ...


class Layer(Halves, Protocol):
    """A layer: its two halves, and the weights for a back-end that computes them otherwise. `mixture` stands
    in for the dense MLP; `total` adds up the parts of all ranks."""

    input_norm: Tensor
    post_norm: Tensor
    qk_norm: Tensor | None
    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    gate_up: Tensor
    down: Tensor
    mixture: Callable[[Tensor], Tensor] | None
    total: Callable[[Tensor], Tensor] | None

    def waits_for_device(self, num_tokens: int) -> bool:
        """Whether a step of so many tokens asks the device something."""
        ...


@dataclass(frozen=True, slots=True)
class Stack:
    """A decoder as back-ends see it: layers, the final norm [hidden] and the head [vocab, hidden], if any."""

    config: DecoderSizes
    layers: Sequence[Layer]
    norm: Tensor
    head: Tensor | None


Turns = tuple[Tensor, Tensor]
"""Cosines and signed sines [n, d] of a step's positions."""

Multiply = Callable[[Tensor, Tensor], Tensor]
"""x [n, in] and a weight [out, in], packed or not -> [n, out]."""


class Steps(Protocol):
    """All that a decoder asks of a back-end: a decoder's steps from the first layer to the scores."""

    def new_pages(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, Tensor]]:
        """Zeroed keys and values of every layer, each [num_blocks, block_size, K, d], in the decoder's type
        and on its device."""
        ...

    def run(self, step: StepInputs, turns: Turns) -> tuple[Tensor, Tensor | None]:
        """Compute one step; writes the new keys and values. The hidden states after the final norm, of the
        tokens `step.wanted`, and those captured, of all tokens, or None. The next step may overwrite them."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """What `run` returned, or any rows of it [r, hidden] -> [r, vocab]."""
        ...
