"""A few people talking with one engine through a driver, step by step, greedily."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from antiphon import Sampling
from antiphon.core.conversation import Item
from antiphon.core.facts import (
    Fact,
    ItemAdded,
    ItemCut,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    TurnForeseen,
)
from antiphon.core.plans import AudioOut, Output, ResponseEnded, TokensOut, TurnOutput, WordsHeard
from antiphon.engine.load import Engine
from antiphon.metrics.names import Metric
from antiphon.runtime.driver import DecisionRecorder, Driver

WAIT_S = 30.0
"""Far longer than a step: a wait that nothing ends shows as a test that hangs."""

MAX_TEXT, MAX_CODES = 14, 20
SIZES = {"kv_tokens": 2048, "max_context_tokens": 2048}
"""Room for all that is asked at once. Every ledger is checked after every step, block by block."""
GREEDY = {
    "thinker": Sampling(max_tokens=MAX_TEXT),
    "talker": Sampling(max_tokens=MAX_CODES, repetition_penalty=1.05),
}


@dataclass
class Said:
    """What one response brought."""

    text: list[int] = field(default_factory=list)
    codes: list[list[int]] = field(default_factory=list)
    audio: list[bytes] = field(default_factory=list)
    end: ResponseEnded | None = None

    @property
    def wav(self) -> np.ndarray:
        return np.frombuffer(b"".join(self.audio), np.float32)


class Talk:
    """Overrides replace fields of every AR stage's config, or of one: `thinker={"stop_ids": (7,)}`."""

    def __init__(
        self,
        engine: Engine,
        recorder: DecisionRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
        **overrides: Any,
    ) -> None:
        stages = {
            name: msgspec.structs.replace(
                config,
                **{k: v for k, v in overrides.items() if not isinstance(v, dict)},
                **overrides.get(name, {}),
            )
            for name, config in engine.node.ar.items()
        }
        self.engine = replace(engine, node=msgspec.structs.replace(engine.node, ar=stages))
        self.driver = Driver(self.engine, self._hear_all, clock, recorder)
        self.said: dict[str, Said] = defaultdict(Said)
        self.words: list[WordsHeard] = []
        self._facts: list[Fact] = []

    def open(self, session: str, *items: Item) -> None:
        self._facts += [SessionOpened(session), *(ItemAdded(session, item) for item in items)]

    def add(self, session: str, item: Item) -> None:
        self._facts.append(ItemAdded(session, item))

    def foresee(self, session: str, item: Item, reply: ResponseRequested) -> None:
        self._facts.append(TurnForeseen(session, item, reply))

    def ask(self, session: str, response: str | None = None, **wanted: Any) -> None:
        name = response or session
        fields = {"voice": "Ethan", "sampling": GREEDY, "codes": True, **wanted}
        self._facts.append(ResponseRequested(session, name, f"reply-{name}", **fields))

    def cancel(self, session: str, response: str | None = None, keep: int | None = None) -> None:
        self._facts.append(ResponseCancelled(session, response or session, keep_tokens=keep))

    def cut(self, session: str, item_id: str, keep: int) -> None:
        self._facts.append(ItemCut(session, item_id, keep))

    def tell(self, *facts: Fact) -> None:
        self._facts += facts

    def close(self, *sessions: str) -> None:
        self._facts += [SessionClosed(session) for session in sessions]

    def step(self, count: int = 1) -> bool:
        """Advance; True while there is more to do. The ledgers agree after every step."""
        more = True
        for _ in range(count):
            more = self.turn()
            if more:
                self.driver.wait(WAIT_S)
        return more

    def turn(self) -> bool:
        """The same once, without waiting for what is under way."""
        facts, self._facts = self._facts, []
        more = self.driver.advance(facts)
        self.driver.node.check_integrity()
        return more

    def run(self) -> None:
        while self.step():
            pass

    def check_all_free(self) -> None:
        """After every session is closed, nothing is held by anybody."""
        stats = self.driver.stats()
        for stage, config in self.engine.node.ar.items():
            assert stats[Metric.KV_BLOCKS_FREE.of(stage)] == config.num_blocks
            assert stats[Metric.REQUESTS_RUNNING.of(stage)] == 0
            assert stats[Metric.REQUESTS_WAITING.of(stage)] == 0
        assert stats[Metric.SESSIONS] == 0
        assert stats[Metric.RESPONSES_OPEN] == 0
        talker = self.engine.executors["talker"]
        if self.engine.processes is None:
            assert not getattr(talker, "inner", talker).runner._payloads
        else:
            assert not self.engine.processes.num_awaited

    def _hear_all(self, outputs: tuple[Output, ...]) -> None:
        for output in outputs:
            self._hear(output)

    def _hear(self, output: Output) -> None:
        if isinstance(output, WordsHeard):
            self.words.append(output)
        if isinstance(output, TurnOutput):
            return
        said = self.said[output.response]
        assert said.end is None, "the end comes last"
        match output:
            case TokensOut(stage="thinker" | "transcriber"):
                said.text += output.tokens[:, 0].tolist()
            case TokensOut():
                said.codes += output.tokens.tolist()
            case AudioOut():
                said.audio.append(output.audio)
            case ResponseEnded():
                said.end = output
