"""What an engine would keep of a session: its facts and outputs folded into the record."""

from __future__ import annotations

from antiphon.core.conversation import Item, TokensPart
from antiphon.core.facts import (
    ItemAdded,
    ItemCut,
    ItemRemoved,
    PersonFact,
    ResponseCancelled,
    ResponseRequested,
)
from antiphon.core.plans import Output, ResponseEnded, TokensOut, TurnOutput
from antiphon.flow.record import Record


class Recorder:
    """An engine that never works. A response that it ends as anything but cancelled was over before the
    cancel reached it."""

    def __init__(self) -> None:
        self.record = Record()
        self._asked: dict[str, tuple[ResponseRequested, str]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._keeps: dict[str, int | None] = {}

    def fact(self, fact: PersonFact) -> None:
        match fact:
            case ItemAdded():
                self.record.add(fact.item, fact.after)
            case ItemRemoved():
                self.record.remove(fact.item_id)
            case ItemCut():
                self.record.cut(fact.item_id, fact.num_tokens)
            case ResponseRequested():
                self._asked[fact.response] = (fact, self.record.last_id)
                self._tokens[fact.response] = []
            case ResponseCancelled():
                self._keeps[fact.response] = fact.keep_tokens
            case _:
                pass

    def output(self, output: Output) -> None:
        """Before the session sees it."""
        if isinstance(output, TurnOutput) or output.response not in self._asked:
            return
        match output:
            case TokensOut():
                self._tokens[output.response] += output.tokens[:, 0].tolist()
            case ResponseEnded():
                asked, after = self._asked.pop(output.response)
                keep = self._keeps.get(output.response)
                if output.status == "cancelled" and keep is not None:
                    self.record.cut(asked.item_id, keep)
                if asked.remember and self._tokens[output.response]:
                    reply = TokensPart(tuple(self._tokens[output.response]))
                    self.record.add(Item(asked.item_id, "assistant", (reply,)), after)
            case _:
                pass

    def replies(self) -> dict[str, str]:
        """Text of the replies that the next prompt would hold, by item; tokens are code points."""
        parts = [(item.id, item.parts[0]) for item in self.record.items if item.role == "assistant"]
        return {
            name: "".join(map(chr, part.token_ids)) for name, part in parts if isinstance(part, TokensPart)
        }
