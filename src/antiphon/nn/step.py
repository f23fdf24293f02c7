"""One step of a decoder, as runners, models and back-ends hand it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from antiphon.nn.attention import LayerKv
from antiphon.nn.transfers import Transfers


@dataclass(frozen=True, slots=True)
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
    """

    x: Tensor
    positions: Tensor
    kv: Sequence[LayerKv]
    wanted: Tensor | None = None
    capture: int | None = None
    deepstack: Sequence[Tensor] = ()
    visual: Tensor | None = None
    transfers: Transfers | None = None

    @property
    def narrow(self) -> Tensor | None:
        """The tokens that are computed past the last layer's attention, int64 [m]; None: all of them."""
        layers = len(self.kv)
        if self.capture == layers or len(self.deepstack) >= layers or self.transfers is not None:
            return None
        return self.wanted
