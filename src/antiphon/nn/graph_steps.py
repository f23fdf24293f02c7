"""A decoder's decode step as captured pieces, with the attention run between them.

Attention is left out because back-ends look at the batch, and because it alone depends on more than its own
row: what stands in the padding never reaches the cache. So a step of L layers is L + 1 pieces: what is before
the first attention, what is between two, what is after the last. Every piece writes where the next one reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from antiphon.nn.attention import Attention
from antiphon.nn.graphs import BUCKETS, Capture, Captured, Outputs, bucket_of, fill
from antiphon.nn.layers import rms_norm
from antiphon.nn.operators import OperatorSteps
from antiphon.nn.step import Stack, StepInputs, Turns


@dataclass(frozen=True, slots=True)
class Pieces:
    """One bucket: its inputs, x [b, hidden], cos and sin [b, d], and the attention [b, H, d] of every piece
    but the first. A piece's outputs are (x, q, k, v), the last one's (x,)."""

    inputs: tuple[Tensor, Tensor, Tensor]
    attention: Tensor
    captured: list[Captured]


class GraphSteps:
    """A decoder's steps, those of single tokens captured and replayed. Holds nothing of any step: any may be
    followed by any other. Implements `nn.step.Steps`.
    """

    def __init__(self, stack: Stack, attention: Attention, capture: Capture) -> None:
        self._operators = OperatorSteps(stack, attention)
        self._layers, self._norm = stack.layers, (stack.norm, stack.config.rms_eps)
        self._attention, self._capture = attention, capture
        self._buckets = tuple(
            rows for rows in BUCKETS if not any(layer.waits_for_device(rows) for layer in stack.layers)
        )
        self._pieces: dict[int, Pieces] = {}
        self.new_pages, self.logits = self._operators.new_pages, self._operators.logits

    def run(self, step: StepInputs, turns: Turns) -> tuple[Tensor, Tensor | None]:
        """As operators do, unless it is a plain step of single tokens, no more than the largest bucket."""
        if step.capture is not None or step.deepstack or step.transfers is not None:
            return self._operators.run(step, turns)
        batch = step.kv[0].batch
        bucket = bucket_of(len(batch.tables), self._buckets) if batch.is_decode else None
        if bucket is None:
            return self._operators.run(step, turns)
        hidden = self._replayed(step, turns, bucket)
        return (hidden if step.wanted is None else hidden[step.wanted]), None

    def _replayed(self, step: StepInputs, turns: Turns, bucket: int) -> Tensor:
        """Hidden states [n, hidden] of all tokens after the final norm."""
        flat = step.x, *turns
        rows = len(step.x)
        if bucket not in self._pieces:
            self._pieces[bucket] = self._captured(bucket, flat)
        pieces = self._pieces[bucket]
        for buffer, values in zip(pieces.inputs, flat, strict=True):
            fill(buffer, values)
        for piece, cache in zip(pieces.captured, step.kv, strict=False):
            piece.replay()
            _, q, k, v = (output[:rows] for output in piece.outputs)
            fill(pieces.attention, cache.attend(q, k, v, self._attention))
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

    def _between(self, index: int, before: Tensor, attention: Tensor, turns: Turns) -> Captured:
        """What is between the attention of layer index - 1 and that of layer index."""

        def work() -> Outputs:
            return self._first(self._layers[index - 1].post_attention(before, attention), *turns, index)

        return self._capture(work)

    def _first(self, x: Tensor, cos: Tensor, sin: Tensor, index: int = 0) -> Outputs:
        return x, *self._layers[index].pre_attention(x, cos, sin)

    def _last(self, before: Tensor, attention: Tensor) -> Outputs:
        x = self._layers[-1].post_attention(before, attention)
        return (rms_norm(x, *self._norm),)
