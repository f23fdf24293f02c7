"""The thinker's executor ordered by hand: rows, blocks, copies and moves are the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch

from antiphon.core.conversation import media_of
from antiphon.core.facts import NO_TOKENS, CopyDone, PromptReady, StepDone
from antiphon.core.plans import ArStep, BlockDelta, CopyBlocks, EncodeStep, Join, RenderPrompt, ints
from antiphon.core.sampling import Sampling
from antiphon.engine.ar import ArExecutor
from antiphon.engine.copies import CopyThreadLane, KvCopies
from antiphon.engine.load import Engine
from antiphon.engine.payloads import InlinePayloads
from antiphon.engine.speech import SpeechRunner
from antiphon.engine.text import TextRunner
from exactness.conftest import World
from exactness.talk import MAX_TEXT

Groups = tuple[tuple[str, int, int], ...]
GARBAGE = 1e3
STAGE = "thinker"


def split(num_layers: int, count: int) -> Groups:
    """`count` groups of nearly equal size; 0 leaves the default."""
    ends = [round(i * num_layers / count) for i in range(count + 1)] if count else [0]
    return tuple((f"layers-{a}", a, b) for a, b in pairwise(ends))


def regrouped(engine: Engine, count: int, host_blocks: int = 0) -> Engine:
    """The engine's models over pages in `count` groups of layers a stage, or one a layer if it has fewer."""
    thinker, talker = (engine.executors[name].runner for name in ("thinker", "talker"))
    features = thinker._features
    ar = {
        name: msgspec.structs.replace(
            engine.node.ar[name],
            layer_groups=split(n := runner.pool.num_layers, min(n, count)),
            host_blocks=host_blocks,
        )
        for name, runner in (("thinker", thinker), ("talker", talker))
    }
    text = TextRunner(thinker._model, ar["thinker"], features)
    speech = SpeechRunner(talker._model, ar["talker"])
    executors = {**engine.executors, "thinker": ArExecutor(text), "talker": ArExecutor(speech)}
    payloads = InlinePayloads({"thinker": text}, {"talker": speech}, features)
    mover = KvCopies({"thinker": text.pool, "talker": speech.pool}, CopyThreadLane)
    node = msgspec.structs.replace(engine.node, ar=ar)
    return replace(engine, executors=executors, payloads=payloads, mover=mover, node=node)


class Rig:
    """Row i answers content `indices[i]` of the world. Blocks are dealt out at random, group by group."""

    def __init__(
        self, world: World, rng: np.random.Generator, indices: list[int], num_groups: int, **config: Any
    ) -> None:
        engine = world.omni.engine
        loaded = engine.executors[STAGE].runner
        self.world, self.rng, self.indices = world, rng, indices
        self.config = msgspec.structs.replace(
            engine.node.ar[STAGE],
            layer_groups=split(loaded.pool.num_layers, num_groups),
            num_blocks=160,
            **config,
        )
        self.runner = TextRunner(loaded._model, self.config, loaded._features)
        self.pool = self.runner.pool
        self.executor = ArExecutor(self.runner)
        self.copies = KvCopies({STAGE: self.pool}, CopyThreadLane)
        self.free = {group: rng.permutation(160).tolist() for group in self.pool.groups}
        self.tables: dict[tuple[str, int], list[int]] = {}
        self.tokens: list[list[int]] = [[] for _ in indices]
        self.lengths = [0] * len(indices)
        self._deltas: list[BlockDelta] = []
        self._num_steps = self._num_tickets = 0

    @property
    def unfinished(self) -> list[int]:
        """Rows that have begun and have more to say."""
        return [row for row, said in enumerate(self.tokens) if 0 < len(said) < len(self._expected(row))]

    def step(
        self,
        rows: list[int],
        joins: list[int] = (),
        leaves: Mapping[int, int] = (),
        enters: Mapping[int, int] = (),
        waits: tuple[int, ...] = (),
    ) -> None:
        """One token of each of `rows`, the whole prompts of `joins`."""
        leaves, enters = dict(leaves), dict(enters)
        joined = [self._join(row) for row in joins]
        counts = [*(1 for _ in rows), *(len(join.prompt.token_ids) for join in joined)]
        rows = [*rows, *joins]
        step = ArStep(
            stage=STAGE,
            step=self._num_steps,
            joins=tuple(joined),
            leaves=ints([]),
            blocks=tuple(self._deltas),
            inputs_rows=ints([]),
            inputs_tokens=ints([]),
            rows=ints(rows),
            starts=ints([self.lengths[row] for row in rows]),
            counts=ints(counts),
            emits=ints([row not in leaves for row in rows]),
            reason="",
            waits=(ints([rows[0]] * len(waits)), ints([*waits])),
            leaves_at=(ints([*leaves]), ints([*leaves.values()])),
            enters_at=(ints([*enters]), ints([*enters.values()])),
        )
        self._num_steps += 1
        self._deltas = []
        self.executor.submit(step)
        (fact,) = self.executor.poll()
        assert isinstance(fact, StepDone), fact
        assert fact.requests.tolist() == [row for row in rows if row not in leaves]
        for row, (token,) in zip(fact.requests.tolist(), fact.tokens.tolist(), strict=True):
            self.tokens[row].append(token)
            self.lengths[row] += counts[rows.index(row)]

    def finish(self) -> None:
        """Everybody says the rest, which is what the reference says."""
        while rows := self.unfinished:
            self.step(rows)
        self.check()

    def check(self) -> None:
        assert self.tokens == [self._expected(row) for row in range(len(self.indices))]

    def copy_out(self, row: int, group: str) -> tuple[int, list[int]]:
        """A row's blocks of a group to host blocks of the test's choice: (ticket, host blocks)."""
        blocks = self.tables[group, row]
        host = self.rng.permutation(self.config.host_blocks)[: len(blocks)].tolist()
        return self._copy(group, "host", blocks, host), host

    def drop(self, row: int, group: str) -> None:
        """The device blocks go back, full of somebody else's numbers."""
        blocks = self.tables.pop((group, row))
        for layer in self.pool.device[group]:
            for tensor in layer:
                tensor[blocks] = GARBAGE * torch.randn(len(blocks), *tensor.shape[1:], dtype=tensor.dtype)
        self.free[group] += blocks

    def copy_back(self, row: int, group: str, host: list[int]) -> int:
        """To other device blocks than before; the table follows with the next step. Returns the ticket."""
        self._deal(row, group, len(host))
        return self._copy(group, "device", host, self.tables[group, row])

    def settle(self) -> list[int]:
        """Wait until every copy is reported; returns the tickets in the order of their reports."""
        facts = []
        while self.copies.num_in_flight:
            facts += self.copies.poll()
        assert all(isinstance(fact, CopyDone) for fact in facts), facts
        return [fact.ticket for fact in facts]

    def _expected(self, row: int) -> list[int]:
        return self.world.expect_content(self.indices[row]).text.tolist()

    def _copy(self, group: str, to: Any, sources: list[int], targets: list[int]) -> int:
        self._num_tickets += 1
        self.copies.copy(CopyBlocks(STAGE, group, to, ints(sources), ints(targets), self._num_tickets))
        return self._num_tickets

    def _deal(self, row: int, group: str, count: int) -> None:
        blocks = [self.free[group].pop(0) for _ in range(count)]
        self.tables[group, row] = blocks
        self._deltas.append(BlockDelta(group, np.full(count, row, np.int64), np.arange(count), ints(blocks)))

    def _join(self, row: int) -> Join:
        items = (self.world.item(self.indices[row]),)
        if media := media_of(items):
            encoders = self.world.omni.engine.executors["encoders"]
            encoders.submit(EncodeStep("encoders", 0, media, ""))
            encoders.poll()
        ready = self.world.omni.engine.prompter.render(RenderPrompt(row, items, speech=False))
        assert isinstance(ready, PromptReady)
        prompt = ready.prompts[STAGE]
        count = -(-(len(prompt.token_ids) + MAX_TEXT) // self.config.block_size)
        for group in self.pool.groups:
            self._deal(row, group, count)
        return Join(row, row, prompt, 0, Sampling(), NO_TOKENS)
