"""A decoder's steps by torch operators, layer by layer, with any attention: every back-end's reference."""

from __future__ import annotations

from torch import Tensor

from antiphon.nn.attention import Attention
from antiphon.nn.fresh import fresh
from antiphon.nn.layers import rms_norm
from antiphon.nn.products import linear
from antiphon.nn.step import Stack, StepInputs, Turns


class OperatorSteps:
    """Any device, any type. Implements `nn.step.Steps`."""

    def __init__(self, stack: Stack, attention: Attention) -> None:
        self.stack, self.attention = stack, attention

    def new_pages(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, Tensor]]:
        norm, shape = self.stack.norm, (num_blocks, block_size, *self.stack.config.kv_shape)
        like = norm.dtype, norm.device
        return [(fresh(shape, *like), fresh(shape, *like)) for _ in self.stack.layers]

    def run(self, step: StepInputs, turns: Turns) -> tuple[Tensor, Tensor | None]:
        """Past the last attention only the tokens `step.narrow` are computed."""
        x, narrow, layers = step.x, step.narrow, self.stack.layers
        captured = x if step.capture == 0 else None
        for i, (layer, cache) in enumerate(zip(layers, step.kv, strict=True)):
            if step.transfers is None:
                q, k, v = layer.pre_attention(x, *turns)
                attended = cache.attend(q, k, v, self.attention)
                if narrow is not None and i + 1 == len(layers):
                    x, attended = x[narrow], attended[narrow]
                x = layer.post_attention(x, attended)
            else:
                x = step.transfers.through(i, layer, (x, *turns), cache, self.attention)
            if step.capture == i + 1:
                captured = x
            if step.visual is not None and i < len(step.deepstack):
                x = x.index_add(0, step.visual, step.deepstack[i].to(x.dtype))
        x = rms_norm(x, self.stack.norm, self.stack.config.rms_eps)
        return step.pick(x), x if step.capture == len(layers) else captured

    def logits(self, hidden: Tensor) -> Tensor:
        assert self.stack.head is not None, "a head was given"
        return linear(hidden, self.stack.head)
