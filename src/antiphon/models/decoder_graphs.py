"""A decoder's decode step as captured pieces, with the attention run between them.

Attention is left out because back-ends look at the batch, and because it alone depends on more than its own
row: what stands in the padding never reaches the cache. So a step of L layers is L + 1 pieces: what is before
the first attention, what is between two, what is after the last. Every piece writes where the next one reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from antiphon.nn.attention import Attention
from antiphon.nn.graphs import Capture, Captured, Outputs, bucket_of, fill
from antiphon.nn.layers import rms_norm
from antiphon.nn.step import StepInputs
from antiphon.nn.transfers import Halves


@dataclass(frozen=True, slots=True)
class Pieces:
    """One bucket: its inputs, x [b, hidden], cos and sin [b, d], and the attention [b, H, d] of every piece
    but the first. A piece's outputs are (x, q, k, v), the last one's (x,)."""

    inputs: tuple[Tensor, Tensor, Tensor]
    attention: Tensor
    captured: list[Captured]


class DecodeGraphs:
    """The decode steps of one decoder. Holds nothing of any step: any may be followed by any other."""

    def __init__(
        self, layers: Sequence[Halves], norm: tuple[Tensor, float], capture: Capture, buckets: tuple[int, ...]
    ) -> None:
        """norm: weight and epsilon of the final norm."""
        self._layers, self._norm = layers, norm
        self._capture = capture
        self._buckets = buckets
        self._pieces: dict[int, Pieces] = {}

    def takes(self, step: StepInputs) -> bool:
        """Is this a plain step of single tokens, no more than the largest bucket?"""
        if step.capture is not None or step.deepstack or step.transfers is not None:
            return False
        batch = step.kv[0].batch
        return batch.is_decode and bucket_of(len(batch.tables), self._buckets) is not None

    def forward(self, step: StepInputs, turns: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        """turns: cos and sin [n, d] -> hidden [n, hidden] after the final norm, which the next step
        overwrites."""
        flat = step.x, *turns
        rows = len(step.x)
        bucket = bucket_of(rows, self._buckets)
        assert bucket is not None, "takes() was asked"
        if bucket not in self._pieces:
            self._pieces[bucket] = self._captured(bucket, flat)
        pieces = self._pieces[bucket]
        for buffer, values in zip(pieces.inputs, flat, strict=True):
            fill(buffer, values)
        for piece, cache in zip(pieces.captured, step.kv, strict=False):
            piece.replay()
            _, q, k, v = (output[:rows] for output in piece.outputs)
            fill(pieces.attention, cache.attend(q, k, v, attention))
        pieces.captured[-1].replay()
        return pieces.captured[-1].outputs[0][:rows]

    def _captured(self, bucket: int, flat: tuple[Tensor, Tensor, Tensor]) -> Pieces:
        x, cos, sin = (values.new_zeros(bucket, values.shape[1]) for values in flat)
        first = self._capture(lambda: self._first(x, cos, sin))
        _, q, _, _ = first.outputs
        attention = q.new_zeros(q.shape)
        captured = [first]
        for index in range(1, len(self._layers)):
            captured.append(self._between(index, captured[-1].outputs[0], attention, (cos, sin)))
        before = captured[-1].outputs[0]
        captured.append(self._capture(lambda: self._last(before, attention)))
        return Pieces((x, cos, sin), attention, captured)

    def _between(
        self, index: int, before: Tensor, attention: Tensor, turns: tuple[Tensor, Tensor]
    ) -> Captured:
        """What is between the attention of layer index - 1 and that of layer index."""

        def work() -> Outputs:
            return self._first(self._layers[index - 1].post_attention(before, attention), *turns, index)

        return self._capture(work)

    def _first(self, x: Tensor, cos: Tensor, sin: Tensor, index: int = 0) -> Outputs:
        return x, *self._layers[index].pre_attention(x, cos, sin)

    def _last(self, before: Tensor, attention: Tensor) -> Outputs:
        x = self._layers[-1].post_attention(before, attention)
        return (rms_norm(x, *self._norm),)
