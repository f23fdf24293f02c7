"""What a record says of responses that were cancelled: in how many decisions they were named afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.core.facts import ResponseCancelled, ResponseRequested, SessionClosed, SessionOpened
from antiphon.core.plans import ArStep, CodecStep, Decision, Handoff, RenderPrompt
from antiphon.runtime.record import Entry, read_record


@dataclass
class Afterlife:
    """Follows requests from their responses into rows of stages.

    named  for each cancelled response that the engine was working on: orders that name it from then on
    """

    named: dict[str, list[str]] = field(default_factory=dict)
    stages: dict[str, set[str]] = field(default_factory=dict)
    """Stages that worked for each response before it ended."""
    _open: set[str] = field(default_factory=set)
    _responses: dict[int, str] = field(default_factory=dict)
    _sessions: dict[str, str] = field(default_factory=dict)
    _rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def see(self, entry: Entry) -> None:
        asked: list[str] = []
        for fact in entry.facts:
            match fact:
                case SessionOpened():
                    self._open.add(fact.session)
                case ResponseRequested() if fact.session in self._open:
                    asked.append(fact.response)
                    self._sessions[fact.response] = fact.session
                case ResponseCancelled() if fact.response in self._sessions:
                    self.named.setdefault(fact.response, [])
                case SessionClosed():
                    self._open.discard(fact.session)
                    mine = [name for name, session in self._sessions.items() if session == fact.session]
                    self.named |= {name: self.named.get(name, []) for name in mine}
                case _:
                    pass
        new = [o.request for o in entry.decision.orders if isinstance(o, RenderPrompt)]
        new = [request for request in dict.fromkeys(new) if request not in self._responses]
        self._responses |= dict(zip(new, asked, strict=True))
        for kind, stage, request in self._orders(entry.decision):
            response = self._responses[request]
            # asked for and cancelled at one moment: its prompt is rendered for nothing, and that is all
            if response in self.named and not (kind == "render" and response in asked):
                self.named[response].append(f"{kind} {stage} at {entry.now}")
            self.stages.setdefault(response, set()).add(stage)

    def _orders(self, decision: Decision) -> Iterator[tuple[str, str, int]]:
        """Everything that asks a stage to work for a request. To give up its row is no work."""
        for order in decision.orders:
            match order:
                case ArStep():
                    for join in order.joins:
                        self._rows[order.stage, join.row] = join.request
                        yield "join", order.stage, join.request
                    for row in order.rows.tolist():
                        yield "step", order.stage, self._rows[order.stage, row]
                case CodecStep():
                    for request in order.requests.tolist():
                        yield "step", order.stage, request
                case Handoff():
                    yield "handoff", order.target, order.request
                case RenderPrompt():
                    yield "render", "prompt", order.request
                case _:
                    pass


def afterlife(record: Path) -> Afterlife:
    """Read a record to its end."""
    seen = Afterlife()
    for entry in read_record(record)[1]:
        seen.see(entry)
    return seen
