"""Executors of the toy model. They carry steps out, and they refuse a step that no real one could survive.

The KV is simulated slot by slot: a slot holds the state that its position had when it was computed. Before a
row runs, every earlier position must hold the state that the row's own history gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from antiphon.core.config import ArConfig
from antiphon.core.facts import NO_INTS, NO_TOKENS, Fact, Ints, StageFact, StepDone, StepFailed
from antiphon.core.plans import (
    ArStep,
    CodecStep,
    EncodeStep,
    Join,
    Step,
    ints,
)
from fakes import toy
from fakes.copies import GARBAGE, FakeCopy, FakeMove, Waits


class Device:
    """What the executors share: steps done but not reported yet, in order, and which steps shall fail.

    A device that lags is still busy with a step when the node is asked for the one after the next.
    """

    def __init__(self, depth: int, lags: bool) -> None:
        self.depth = depth
        self.lags = lags
        self.failing: set[str] = set()
        self.is_vague = False
        """Failures name nobody, as an executor's never should."""
        self._unreported: deque[tuple[Callable[[StageFact], None], StageFact]] = deque()

    @property
    def num_in_flight(self) -> int:
        return len(self._unreported)

    def run(self, fact: StageFact, report: Callable[[StageFact], None]) -> None:
        self._unreported.append((report, fact))

    def fails(self, stage: str) -> bool:
        """Whether this step is the one that was told to fail."""
        if stage not in self.failing:
            return False
        self.failing.remove(stage)
        return True

    def report(self, before: int) -> None:
        """Let the oldest steps be seen, as many as have to be before the next can be planned.

        `before` is how many were in flight when the last one was: if none was added, one more is seen.
        """
        stepped = len(self._unreported) > before
        keep = self.depth + self.lags if stepped else before - 1
        while len(self._unreported) > max(keep, 0):
            report, fact = self._unreported.popleft()
            report(fact)


def layer_groups(config: ArConfig) -> tuple[str, ...]:
    """Groups that hold layers: one, unless they are configured."""
    return tuple(name for name, _, _ in config.layer_groups) or ("kv",)


class FakeExecutor:
    """Runs at submit, reports when the device lets it. Implements `core.ports.Executor`."""

    def __init__(self, device: Device) -> None:
        self.depth = device.depth
        self._device = device
        self._done: list[Fact] = []
        self._last_step = -1

    def submit(self, step: Step) -> None:
        assert step.step > self._last_step, "steps of a stage come in order"
        self._last_step = step.step
        fact = self._carry_out(step, self._device.fails(step.stage))
        if self._device.is_vague and isinstance(fact, StepFailed):
            fact = StepFailed(fact.stage, fact.step, NO_INTS, NO_INTS, fact.message)
        self._device.run(fact, self._report)

    def poll(self) -> list[Fact]:
        done, self._done = self._done, []
        return done

    def _carry_out(self, step: Step, fails: bool) -> StageFact:
        raise NotImplementedError

    def _report(self, fact: StageFact) -> None:
        self._done.append(fact)


class FakeEncoder(FakeExecutor):
    """Keeps the keys of what it encoded."""

    def __init__(self, device: Device, features: set[int]) -> None:
        super().__init__(device)
        self.features = features
        self.bad: set[int] = set()
        """Media that break every step they are in."""

    def _carry_out(self, step: Step, fails: bool) -> StageFact:
        assert isinstance(step, EncodeStep)
        keys = ints([part.key for part in step.media])
        assert len(keys)
        if fails or not self.bad.isdisjoint(keys.tolist()):
            return StepFailed(step.stage, step.step, NO_INTS, keys, "injected")
        assert self.features.isdisjoint(keys.tolist()), "encoded twice"
        self.features.update(keys.tolist())
        return StepDone(step.stage, step.step, NO_INTS, NO_TOKENS, NO_INTS, keys)


@dataclass(slots=True)
class Row:
    """A live row: its contents and states by position, and its block table per group."""

    join: Join
    contents: list[int]
    states: list[int] = field(default_factory=list)
    tables: dict[str, dict[int, int]] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    frame: tuple[int, ...] = ()
    length: int = 0
    broken: bool = False

    @property
    def prompt_length(self) -> int:
        return len(self.join.prompt.token_ids)

    @property
    def first_length(self) -> int:
        """What is computed before the row draws: its prompt, and what its request drew before it joined."""
        return self.prompt_length + len(self.join.generated)


Named = tuple[int, frozenset[int], frozenset[tuple[str, int]]]
"""A step in flight: its number, its rows, and its blocks as (group, block)."""


class FakeAr(FakeExecutor):
    """Row table and KV of a decoder; `_draw` and `_content` are the toy model."""

    def __init__(self, device: Device, config: ArConfig, groups: tuple[str, ...]) -> None:
        super().__init__(device)
        self.config = config
        self.rows: dict[int, Row] = {}
        self.kv: dict[tuple[str, int, int], int] = {}
        self.host_kv: dict[tuple[str, int, int], int] = {}
        self.copies: list[FakeCopy | FakeMove] = []
        """Those to its device or host that are not reported, in order."""
        self.moves_out: list[FakeMove] = []
        """Those from its device to another's."""
        self.last_ticket = -1
        self._waits = Waits([], (), [])
        self._groups = groups
        self._in_flight: deque[Named] = deque()

    def _contents(self, row: Row) -> list[int]:
        """What the positions show that a row joins with. Its upstream tokens have come."""
        return [*row.join.prompt.keys.tolist(), *row.join.generated[:, 0].tolist()]

    def _content(self, row: Row, position: int) -> int:
        """What a position shows."""
        return row.contents[position]

    def _draw(self, row: Row) -> list[int]:
        """The next token row, from the last state."""
        token = toy.draw_text(row.states[row.length - 1], row.join.sampling.seed)
        row.contents.append(token)
        return [token]

    def _check_inputs(self, row: Row, positions: range) -> None:
        """What beside tokens these positions need."""

    def _carry_out(self, step: Step, fails: bool) -> StageFact:
        assert isinstance(step, ArStep)
        assert step.counts.sum() <= self.config.step_tokens
        assert len(set(step.rows.tolist())) == len(step.rows), "a row runs twice in a step"
        self._apply(step)
        self._waits = Waits(self.copies, step.tickets, self.moves_out)
        fails |= self._waits.has_failed
        columns = (step.rows, step.starts, step.counts, step.emits)
        work = list(zip(*(column.tolist() for column in columns), strict=True))
        self._in_flight.append((step.step, self._named_rows(step), self._named_blocks(step)))
        tokens = [drawn for row, *rest in work if (drawn := self._run(self.rows[row], *rest, fails))]
        if fails:
            lost = {self.rows[row].join.request for row in self._named_rows(step)}
            return StepFailed(step.stage, step.step, ints(sorted(lost)), NO_INTS, "injected")
        emitting = [self.rows[row].join.request for row in step.rows[step.emits == 1].tolist()]
        drawn_rows = np.array(tokens, np.int64).reshape(-1, self.config.width)
        return StepDone(step.stage, step.step, ints(emitting), drawn_rows, NO_INTS, NO_INTS)

    def _report(self, fact: StageFact) -> None:
        super()._report(fact)
        assert self._in_flight.popleft()[0] == fact.step

    def _named_rows(self, step: ArStep) -> frozenset[int]:
        return frozenset([*step.rows.tolist(), *(join.row for join in step.joins)])

    def _named_blocks(self, step: ArStep) -> frozenset[tuple[str, int]]:
        tables = [self.rows[row].tables for row in self._named_rows(step)]
        return frozenset(
            (group, block) for table in tables for group in self._groups for block in table[group].values()
        )

    # -- the delta -----------------------------------------------------------------------------------

    def _apply(self, step: ArStep) -> None:
        for row in step.leaves.tolist():
            del self.rows[row]
        for join in step.joins:
            self._join(join)
        for delta in step.blocks:
            for row, index, block in zip(delta.rows, delta.index, delta.blocks, strict=True):
                self._enter(delta.group, int(row), int(index), int(block))
        for row, token in zip(step.inputs_rows.tolist(), step.inputs_tokens.tolist(), strict=True):
            self.rows[row].inputs.append(token)
        for join in step.joins:
            row = self.rows[join.row]
            row.contents = self._contents(row)
            row.states = toy.states(row.contents)
            kept = -(-join.cached // self.config.block_size)
            tables = self.rows[join.row].tables.values()
            assert all(len(table) >= kept for table in tables), "cached positions come with their blocks"

    def _join(self, join: Join) -> None:
        assert 0 <= join.row < self.config.max_rows
        assert join.row not in self.rows, "the row is taken"
        for _, rows, _ in self._in_flight:
            assert join.row not in rows, "the row is named by a step in flight"
        assert join.generated.shape[1] == self.config.width
        row = Row(join, [], tables={group: {} for group in self._groups})
        assert 0 <= join.cached < row.first_length, "something must be left to compute"
        row.length = join.cached
        self.rows[join.row] = row

    def _enter(self, group: str, row: int, index: int, block: int) -> None:
        assert 0 <= block < self.config.num_blocks
        join, table = self.rows[row].join, self.rows[row].tables[group]
        assert index == len(table), "table entries come in order, once"
        if index >= -(-join.cached // self.config.block_size):
            for _, _, blocks in self._in_flight:
                assert (group, block) not in blocks, "the block is named by a step in flight"
        table[index] = block

    # -- the work ------------------------------------------------------------------------------------

    def _run(self, row: Row, start: int, count: int, emits: int, fails: bool) -> list[int]:
        """Compute positions [start, start + count) of a row; returns what it draws, if it does."""
        assert count > 0
        assert start == row.length, "positions are computed once and in order"
        assert count == 1 or start + count <= row.first_length
        assert emits == (start + count >= row.first_length)
        row.broken |= fails
        row.length = start + count
        if row.broken:
            self._write(row, start, [GARBAGE] * count)
            return [0] * self.config.width if emits else []
        self._check_history(row, start)
        self._check_inputs(row, range(start, start + count))
        for position in range(max(start, row.first_length), start + count):
            row.states.append(toy.mix(row.states[position - 1], self._content(row, position)))
        self._write(row, start, row.states[start : start + count])
        return self._draw(row) if emits else []

    def _slot(self, row: Row, group: str, position: int) -> tuple[str, int, int]:
        block = row.tables[group][position // self.config.block_size]
        return group, block, position % self.config.block_size

    def _write(self, row: Row, start: int, values: list[int]) -> None:
        for group in self._groups:
            elsewhere = {
                block
                for other in self.rows.values()
                if other is not row
                for block in other.tables[group].values()
            }
            for position, value in enumerate(values, start):
                slot = self._slot(row, group, position)
                assert slot[1] not in elsewhere, "a block that two rows hold is written"
                self._waits.check_write(*slot[:2])
                self.kv[slot] = value

    def _check_history(self, row: Row, start: int) -> None:
        for group in self._groups:
            for position in range(start):
                slot = self._slot(row, group, position)
                self._waits.check_read(*slot[:2])
                held = self.kv.get(slot)
                assert held == row.states[position], f"position {position} does not hold this row's past"


class FakeThinker(FakeAr):
    """Reads media features while it computes their positions."""

    def __init__(self, device: Device, config: ArConfig, features: set[int]) -> None:
        super().__init__(device, config, (*layer_groups(config), "hidden"))
        self._features = features

    def payload(self, row: int, positions: Ints) -> list[int]:
        return [self.kv[self._slot(self.rows[row], "hidden", position)] for position in positions.tolist()]

    def _check_inputs(self, row: Row, positions: range) -> None:
        for span in row.join.prompt.spans:
            if set(positions) & set(range(span.start, span.start + span.length)):
                assert span.key in self._features, "media features are gone before they were read"


class FakeTalker(FakeAr):
    """Takes text beside its own frames, and the thinker's hidden states with its prompt."""

    def __init__(self, device: Device, config: ArConfig) -> None:
        super().__init__(device, config, layer_groups(config))
        self.payloads: dict[int, list[int]] = {}

    def _contents(self, row: Row) -> list[int]:
        join = row.join
        assert join.first_input is not None
        hidden = self.payloads.get(join.request, [])
        assert len(hidden) == len(join.prompt.gather), "the prompt's payload is not here"
        contents = toy.talker_contents(join.prompt, hidden, join.first_input, join.voice)
        frames = [tuple(frame) for frame in join.generated.tolist()]
        return contents + [self._spoken(row, frame, at) for at, frame in enumerate(frames)]

    def _content(self, row: Row, position: int) -> int:
        return self._spoken(row, row.frame, position - row.prompt_length)

    def _spoken(self, row: Row, frame: tuple[int, ...], at: int) -> int:
        return toy.spoken(frame, row.inputs[at] if at < len(row.inputs) else toy.PAD)

    def _draw(self, row: Row) -> list[int]:
        row.frame = toy.draw_frame(row.states[row.length - 1], row.join.sampling.seed)
        return list(row.frame)


class FakeCodec(FakeExecutor):
    """Streams of sound, one per row."""

    def __init__(self, device: Device, max_rows: int) -> None:
        super().__init__(device)
        self._max_rows = max_rows
        self._streams: dict[int, tuple[int, int]] = {}
        self._in_flight: deque[frozenset[int]] = deque()

    def _carry_out(self, step: Step, fails: bool) -> StageFact:
        assert isinstance(step, CodecStep)
        rows = step.rows.tolist()
        assert len(set(rows)) == len(rows)
        assert set(step.joins.tolist()) <= set(rows) <= set(range(self._max_rows))
        assert step.frames.shape == (step.counts.sum(), toy.WIDTH)
        for row in step.joins.tolist():
            assert all(row not in named for named in self._in_flight), "the row is named by a step in flight"
            self._streams[row] = (int(step.requests[rows.index(row)]), toy.START)
        self._in_flight.append(frozenset(rows))
        if fails:
            return StepFailed(step.stage, step.step, step.requests, NO_INTS, "injected")
        ends = np.cumsum(step.counts)
        audio = [
            self._decode(row, request, step.frames[end - count : end].tolist())
            for row, request, count, end in zip(rows, step.requests.tolist(), step.counts, ends, strict=True)
        ]
        samples = ints([len(pcm) // 4 for pcm in audio])
        return StepDone(step.stage, step.step, step.requests, NO_TOKENS, samples, NO_INTS, tuple(audio))

    def _report(self, fact: StageFact) -> None:
        super()._report(fact)
        self._in_flight.popleft()

    def _decode(self, row: int, request: int, frames: list[list[int]]) -> bytes:
        owner, state = self._streams[row]
        assert owner == request, "the row holds another's stream"
        audio = b""
        for frame in frames:
            state = toy.sound(state, frame)
            audio += toy.sound_bytes(state)
        self._streams[row] = owner, state
        return audio
