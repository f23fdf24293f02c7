"""What follows from the facts: orders to the executors and outputs to people, each in order."""

from __future__ import annotations

from antiphon.core.plans import Order, ResponseOutput, WordsHeard


class Outbox:
    """Collects until it is drained."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.outputs: list[ResponseOutput] = []
        self.words: list[WordsHeard] = []

    def drain_words(self) -> tuple[WordsHeard, ...]:
        """All since the last call."""
        words, self.words = tuple(self.words), []
        return words

    def drain(self) -> tuple[tuple[Order, ...], tuple[ResponseOutput, ...]]:
        """All but the words, since the last call."""
        orders, outputs = tuple(self.orders), tuple(self.outputs)
        self.orders, self.outputs = [], []
        return orders, outputs
