"""What follows from the facts: orders to the executors and outputs to people, each in order."""

from __future__ import annotations

from antiphon.core.plans import Order, Output


class Outbox:
    """Collects until it is drained."""

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.outputs: list[Output] = []

    def drain(self) -> tuple[tuple[Order, ...], tuple[Output, ...]]:
        """All since the last call."""
        orders, outputs = tuple(self.orders), tuple(self.outputs)
        self.orders, self.outputs = [], []
        return orders, outputs
