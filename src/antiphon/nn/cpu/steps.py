"""A decoder's step on a CPU in fp32: compiled loops on one tape, from the first layer to the last norm.

Between the products of a layer stand some twenty operators whose cost at a few rows is their call. Here a
layer is eight loops: residual and norm; q, k and v; rotation, write and attention; the output; residual and
norm again; gate and up; the gate; down; and a ninth where prompts attend. The head comes last. Python has its
turn only where something stands between them that is torch's: experts, sums over ranks, weights that are not
laid out in panels, copies that a layer waits for. What is beside a row in the batch changes none of its bits
where the row is one token and the layer dense, its weights in panels.

With `rounds` a weight that is stored in bf16 is multiplied in it, and so is its layer's attention of prompts;
everything else stays fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from antiphon.nn.attention import Chunk, LayerKv, PagedBatch, attend_chunk
from antiphon.nn.cpu.attention import SingleTokens, attention_job, attention_loop, over_pages
from antiphon.nn.cpu.chunks import Chunks, can_take, chunk_job, chunk_loop
from antiphon.nn.cpu.kv_prefetch import Soon
from antiphon.nn.cpu.large_pages import HUGE_PAGE_BYTES, LINE_BYTES, on_large_pages
from antiphon.nn.cpu.paged import viewed
from antiphon.nn.cpu.panels import HAS_TWO, ask_for, product_job, product_loop
from antiphon.nn.cpu.quantised import form_of, is_quantised, quantised_job, quantised_loop
from antiphon.nn.cpu.rows import fit, gate_job, gate_loop, norm_job, norm_loop
from antiphon.nn.cpu.tape import Tape, Turn, tape_loop
from antiphon.nn.step import DecoderSizes, Layer, Multiply, Stack, StepInputs, Steps, Turns

BEFORE, AFTER, END = "before the attention", "after the attention", "the end of the layer"
LEAST_ROOM = 16
"""Tokens for which there are buffers from the beginning."""

SCORED = 64
"""More tokens than this are not all drawn after."""

FILLED = (0, 1, 2, 4, 4, 8, 8, 8)
"""Rows that a product computes instead of so many behind the last eight: every tile reads the weight once, so
one tile of eight rows is faster than those of four, two and one."""


def compile_loops() -> None:
    """Now, so that the first step doesn't wait for it."""
    for loop in (attention_loop, chunk_loop, norm_loop, gate_loop, product_loop, tape_loop):
        loop()


def filled(rows: int) -> int:
    """Rows that a product computes for so many, of which those behind are nobody's. Where registers hold two
    panels' sums, up to 16 rows are read by one tile."""
    if not HAS_TWO:
        return rows
    return 16 if 12 < rows < 16 else rows // 8 * 8 + FILLED[rows % 8]


@dataclass(slots=True)
class Prepared:
    """One batch, for all layers that read through it."""

    singles: SingleTokens
    chunks: Chunks | None
    """Rows of more than one token, for the loop."""
    by_torch: list[Chunk]
    """Rows of more than one token that the loop cannot take."""


class Buffers:
    """What a step of at most `room` tokens is computed in: fp32 [room, ...], all layers in the same. What
    products read begins as zeros, since they may read rows that are nobody's (`filled`)."""

    def __init__(self, config: DecoderSizes, room: int) -> None:
        self.x = torch.zeros(room, config.hidden_size)
        self.normed, self.delta = torch.zeros_like(self.x), torch.empty_like(self.x)
        self.qkv = torch.empty(room, sum(config.qkv_rows))
        self.q = torch.empty(room, config.num_heads, config.head_dim)
        self.attended = torch.zeros_like(self.q)
        self.gates = torch.empty(room, 0 if config.is_moe else 2 * config.intermediate_size)
        self.gated = torch.zeros(room, self.gates.shape[1] // 2)


class CompiledSteps:
    """The steps of one decoder, fp32 on a CPU. Implements `nn.step.Steps`. Compiles when made."""

    def __init__(self, stack: Stack, otherwise: Steps, multiply: Multiply, *, rounds: bool = False) -> None:
        """otherwise: steps in which tokens move between layers, and scores that were not made on the way;
        multiply: products with weights that are not in panels; rounds: bf16 arithmetic, on a CPU that has it,
        where weights are bf16."""
        compile_loops()
        self._stack, self._otherwise, self._multiply, self._rounds = stack, otherwise, multiply, rounds
        self._taped: TapedSteps | None = None
        self._scored: tuple[Tensor, Tensor] | None = None
        """What the last step computed, and the head's scores of it, until they are asked for."""

    def new_pages(self, num_blocks: int, block_size: int) -> list[tuple[Tensor, Tensor]]:
        """On large pages of memory, those of all layers in one piece: what a piece leaves of its last page
        would else be lost for each. They are not touched yet; where there are several to a layer, no page has
        the blocks of two."""
        shape = num_blocks, block_size, *self._stack.config.kv_shape
        count = prod(shape)
        line = (HUGE_PAGE_BYTES if 4 * count > 2 * HUGE_PAGE_BYTES else LINE_BYTES) // 4
        apart = -(-count // line) * line
        whole = on_large_pages(2 * len(self._stack.layers) * apart, touched=False)
        pages = [whole[at : at + count].view(shape) for at in range(0, len(whole), apart)]
        return list(zip(pages[::2], pages[1::2], strict=True))

    def run(self, step: StepInputs, turns: Turns) -> tuple[Tensor, Tensor | None]:
        if step.transfers is not None:
            return self._otherwise.run(step, turns)
        x, captured, scores = self._with_room(len(step.x)).run(step, turns)
        self._scored = None if scores is None else (x, scores)
        return step.pick(x), captured

    def logits(self, hidden: Tensor) -> Tensor:
        scored, self._scored = self._scored, None
        if scored is not None and scored[0] is hidden:
            return scored[1]
        return self._otherwise.logits(hidden)

    def _with_room(self, num_tokens: int) -> TapedSteps:
        """For so many tokens, for as many threads as torch computes with."""
        taped, threads = self._taped, torch.get_num_threads()
        if taped is None or taped.room < num_tokens or taped.threads != threads:
            taped = self._taped = TapedSteps(
                self._stack, self._multiply, num_tokens, threads, rounds=self._rounds
            )
        return taped


class TapedSteps:
    """The steps of one decoder of at most `room` tokens, one at a time: buffers, and a tape over them."""

    def __init__(
        self, stack: Stack, multiply: Multiply, room: int, threads: int, *, rounds: bool = False
    ) -> None:
        layers, head, config = stack.layers, stack.head, stack.config
        self._linear, self._rounds = multiply, rounds
        self.room, self.threads = max(LEAST_ROOM, 1 << (room - 1).bit_length()), threads
        self._config, self._num_tokens, self._fitted = config, 0, (0, 0)
        with torch.inference_mode(False):  # so that inference without it may use them as well
            self._buffers = Buffers(config, self.room)
        self._tape = Tape(threads)
        self._products: list[Any] = []
        self._rows: list[Any] = []
        self._attentions: list[Any] = []
        self._chunks: list[tuple[int, Any]] = []
        """Where on the tape each layer's longer chunks are, and their job."""
        self._before: list[list[Any]] = [[] for _ in range(len(layers) + 1)]
        """The products that run after the last attention and before each, and at the end."""
        self._soon = [Soon() for _ in layers]
        """What each attention will read, which those before it ask for."""
        self._pages: list[Tensor | None] = [None] * len(layers)
        self._behind = 0, 0
        """How many products and other loops of rows there are up to the last attention."""
        self._held = stack
        for i, layer in enumerate(layers):
            self._add_attention(i, layer)
            self._add_mlp(layer)
            self._tape.mark((END, i))
        for soon, jobs in zip(self._soon, self._before, strict=False):
            ask_for(jobs, soon)
        self._last = self._add_norm(self._buffers.delta, stack.norm, None)
        self._head = None
        if head is not None and head.dim() == 3 and layers[0].total is None:
            self._head = self._add_head(head)

    def run(self, step: StepInputs, turned_by: Turns) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The hidden states after the final norm, of the tokens `step.narrow` or of all; what was captured;
        and the head's scores of the first, if they are few. turned_by: cos and signed sin fp32 [n, d]."""
        x, kv, capture, narrow = step.x, step.kv, step.capture, step.narrow
        m = len(x) if narrow is None else len(narrow)
        self._fit(len(x), m)
        mine = self._buffers.x[: len(x)].copy_(x)
        turns: dict[Any, Turn] = {}
        captured: list[Tensor] = []
        self._read_through(kv, turned_by, turns)
        if capture is not None and 0 < capture < len(kv):
            turns[END, capture - 1] = partial(self._capture, captured)
        if step.visual is not None:
            for i, extra in enumerate(step.deepstack):
                turns[END, i] = partial(self._deepen, turns.get((END, i)), step.visual, extra)
        if capture == 0:
            captured.append(mine.clone())
        if narrow is not None:
            place = AFTER, len(kv) - 1
            turns[place] = partial(self._narrow, turns.get(place), narrow)
        out = mine.new_empty(m, mine.shape[1])
        self._last.out = out.data_ptr()
        scores = self._score(out)
        self._tape.run(turns)
        return out, out if capture == len(kv) else captured[0] if captured else None, scores

    # -- what is on the tape -------------------------------------------------------------------------

    def _add_attention(self, i: int, layer: Layer) -> None:
        """From x to what the attention adds to it, in `delta`."""
        buffers, config = self._buffers, self._config
        self._add_norm(buffers.delta if i else None, layer.input_norm, buffers.normed)
        self._add_product(buffers.normed, layer.qkv, buffers.qkv)
        self._tape.mark((BEFORE, i))
        heads = config.num_heads, config.num_kv_heads
        job = attention_job(buffers.qkv, heads, buffers.q, buffers.attended)
        job.eps = config.rms_eps
        job.weight = 0 if layer.qk_norm is None else layer.qk_norm.data_ptr()
        job.bias = 0 if layer.qkv_bias is None else layer.qkv_bias.data_ptr()
        self._tape.add(attention_loop(), job)
        self._attentions.append(job)
        chunks = chunk_job(
            buffers.q, heads, buffers.attended, rounds=self._rounds and layer.qkv.dtype is torch.bfloat16
        )
        self._chunks.append((self._tape.add(chunk_loop(), chunks), chunks))
        self._tape.mark((AFTER, i))
        self._behind = len(self._products), len(self._rows)
        self._add_product(buffers.attended.view(self.room, -1), layer.o, buffers.delta, layer.total)

    def _add_mlp(self, layer: Layer) -> None:
        """From x and `delta` to what the MLP adds, in `delta`."""
        buffers = self._buffers
        self._add_norm(buffers.delta, layer.post_norm, buffers.normed)
        if layer.mixture is not None:
            self._tape.turn(partial(self._put, layer.mixture, layer.total))
            return
        self._add_product(buffers.normed, layer.gate_up, buffers.gates)
        job = gate_job(buffers.gates, buffers.gated)
        self._tape.add(gate_loop(), job)
        self._rows.append(job)
        self._add_product(buffers.gated, layer.down, buffers.delta, layer.total)

    def _add_norm(self, delta: Tensor | None, weight: Tensor, out: Tensor | None) -> Any:
        job = norm_job(self._buffers.x, delta, weight, out, self._config.rms_eps)
        self._tape.add(norm_loop(), job)
        self._rows.append(job)
        return job

    def _add_product(
        self, x: Tensor, weight: Tensor, out: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """total: adds up the parts of all ranks."""
        if weight.dim() == 3 and total is None:
            job = self._put_product(x, weight, out)
            self._products.append(job)
            self._before[len(self._attentions)].append(job)
        else:
            self._tape.turn(partial(self._multiply, x, weight, out, total))

    def _add_head(self, head: Tensor) -> Any:
        """Its input and output are each run's own."""
        return self._put_product(self._buffers.x, head, self._buffers.x)

    def _put_product(self, x: Tensor, weight: Tensor, out: Tensor) -> Any:
        """The job of x times a weight in panels."""
        if is_quantised(weight):
            loop, job = quantised_loop(form_of(weight)[0]), quantised_job(x, weight, out, self.threads)
        else:
            loop, job = product_loop(), product_job(x, weight, out, self.threads, rounds=self._rounds)
        self._tape.add(loop, job)
        return job

    # -- Python's turns ------------------------------------------------------------------------------

    def _multiply(
        self, x: Tensor, weight: Tensor, out: Tensor, total: Callable[[Tensor], Tensor] | None
    ) -> None:
        part = self._linear(x[: self._num_tokens], weight)
        out[: self._num_tokens] = part if total is None else total(part)

    def _put(self, mixture: Callable[[Tensor], Tensor], total: Callable[[Tensor], Tensor] | None) -> None:
        part = mixture(self._buffers.normed[: self._num_tokens])
        self._buffers.delta[: self._num_tokens] = part if total is None else total(part)

    def _capture(self, captured: list[Tensor]) -> None:
        captured.append(self._buffers.x[: self._num_tokens] + self._buffers.delta[: self._num_tokens])

    def _deepen(self, before: Turn | None, visual: Tensor, extra: Tensor) -> None:
        """Add to visual tokens what belongs behind this layer's output."""
        if before is not None:
            before()
        x, delta = self._buffers.x[: self._num_tokens], self._buffers.delta[: self._num_tokens]
        x.add_(delta).index_add_(0, visual, extra.to(x.dtype))
        delta.zero_()

    def _narrow(self, before: Turn | None, tokens: Tensor) -> None:
        """From here on these tokens are all there are."""
        if before is not None:
            before()
        for rows in (self._buffers.x, self._buffers.attended):
            rows[: len(tokens)] = rows[tokens]
        self._num_tokens = len(tokens)

    def _attend(self, cache: LayerKv, chunks: list[Chunk]) -> None:
        """Prompts."""
        for chunk in chunks:
            mine = slice(chunk.first, chunk.last)
            pages = cache.k_pages, cache.v_pages
            self._buffers.attended[mine] = attend_chunk(self._buffers.q[mine], *pages, chunk)

    # -- one step ------------------------------------------------------------------------------------

    def _fit(self, tokens: int, behind: int) -> None:
        """So many tokens up to the last attention, and behind it."""
        self._num_tokens = tokens
        if (tokens, behind) == self._fitted:
            return
        self._fitted = tokens, behind
        products, rows = self._behind
        for i, job in enumerate(self._products):
            job.rows = filled(tokens if i < products else behind)
        for i, job in enumerate(self._rows):
            fit(job, tokens if i < rows else behind, self.threads)

    def _score(self, hidden: Tensor) -> Tensor | None:
        """Where this run's scores of `hidden` will be, if it makes them."""
        if self._head is None:
            return None
        self._head.rows = len(hidden) if len(hidden) <= SCORED else 0
        if not self._head.rows:
            return None
        scores = hidden.new_empty(len(hidden), self._head.width)
        self._head.x, self._head.out = hidden.data_ptr(), scores.data_ptr()
        return scores

    def _read_through(self, kv: Sequence[LayerKv], turned_by: Turns, turns: dict[Any, Turn]) -> None:
        """Each layer's attention is about its batch; what has to happen beside it is a turn."""
        for i, (job, cache) in enumerate(zip(self._attentions, kv, strict=True)):
            batch, soon = cache.batch, self._soon[i]
            if batch.prepared is None:
                batch.prepared = self._prepared(batch, turned_by)
            prepared: Prepared = batch.prepared
            prepared.singles.put_into(job, soon)
            place, chunks = self._chunks[i]
            if cache.k_pages is not self._pages[i]:
                over_pages((job, chunks), soon, (cache.k_pages, cache.v_pages))
                self._pages[i] = cache.k_pages
            if cache.ready is not None:
                turns[BEFORE, i] = cache.ready
            self._tape.use(place, prepared.chunks is not None)
            if prepared.by_torch:
                turns[AFTER, i] = partial(self._attend, cache, prepared.by_torch)
            elif prepared.chunks is not None:
                prepared.chunks.put_into(chunks)

    def _prepared(self, batch: PagedBatch, turned_by: Turns) -> Prepared:
        layer, (_, chunks) = self._attentions[0], self._chunks[0]
        singles = SingleTokens(batch, turned_by, layer, self.threads)
        if batch.is_decode:
            return Prepared(singles, None, [])
        if can_take(batch.block_size, layer.dim):
            return Prepared(singles, Chunks(batch, chunks), [])
        return Prepared(singles, None, [viewed(chunk) for chunk in batch.chunks()])
