"""Tokens that leave and enter a step between its layers: a row's attention may be computed elsewhere, and the
row waits outside the batch meanwhile.

A token leaves between a layer's two halves, with its residual, q, k and v kept; in a later step it enters
between the halves of the same layer, with its attention. Which leave and which enter is fixed when the step
starts, as index tensors per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from antiphon.nn.attention import Attention, LayerKv


class Halves(Protocol):
    """A layer, cut at its attention."""

    def pre_attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...

    def post_attention(self, x: Tensor, attention: Tensor) -> Tensor: ...


@dataclass(slots=True)
class Exchange:
    """One layer's changes. Tokens are places in the step's flat batch, int64.

    before     tokens that run up to the attention, in order
    leaving    which of `before` stop there
    staying    which of `before` go on; the layer's batch describes exactly these
    entering   tokens that go on with `attention` [entering, H, d]
    """

    before: Tensor
    leaving: Tensor
    staying: Tensor
    entering: Tensor
    attention: Tensor | None = None


@dataclass(slots=True)
class Left:
    """What is kept of tokens that left at one layer: residual [l, hidden], q [l, H, d], k and v [l, K, d]."""

    residual: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


@dataclass(slots=True)
class LayerExchanges:
    """Per layer, which tokens run. The step's x holds a row for every token that is in it at any layer; for
    one that enters, that row is its kept residual. `left` is filled by the step, by layer.
    """

    layers: Sequence[Exchange]
    left: dict[int, Left] = field(default_factory=dict[int, Left])

    def through(
        self,
        index: int,
        layer: Halves,
        flat: tuple[Tensor, Tensor, Tensor],
        kv: LayerKv,
        attention: Attention,
    ) -> Tensor:
        """One layer over flat = (x, cos, sin), rows of tokens that aren't in the layer untouched -> x."""
        exchange = self.layers[index]
        x, cos, sin = flat
        here, attended = exchange.before, []
        if len(here):
            q, k, v = layer.pre_attention(x[here], cos[here], sin[here])
            if len(exchange.leaving):
                out = exchange.leaving
                self.left[index] = Left(x[here[out]], q[out], k[out], v[out])
                stay = exchange.staying
                here, q, k, v = here[stay], q[stay], k[stay], v[stay]
            if len(here):
                attended.append(kv.attend(q, k, v, attention))
        if exchange.attention is not None:
            attended.append(exchange.attention)
            here = torch.cat((here, exchange.entering))
        if not attended:
            return x
        return x.index_copy(0, here, layer.post_attention(x[here], torch.cat(attended)))
