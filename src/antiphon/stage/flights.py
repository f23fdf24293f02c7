"""Steps in flight; of a decoder which request each row works for, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from antiphon.core.facts import Ints
from antiphon.kv.transfers import Transfer


@dataclass(frozen=True, slots=True)
class Flight:
    """A step in flight.

    reach   int64 [n]: tokens in the KV of each row once it is done
    joined  requests that it gave a row
    waits   copies that bring what it reads
    """

    rows: Ints
    requests: Ints
    reach: Ints
    joined: tuple[int, ...]
    waits: tuple[Transfer, ...] = ()

    @property
    def row_of(self) -> dict[int, int]:
        """The row that worked for each request."""
        return dict(zip(self.requests.tolist(), self.rows.tolist(), strict=True))

    @property
    def named(self) -> tuple[int, ...]:
        """Requests that ran or joined in it, each once, whatever its executor will say of them."""
        return tuple(dict.fromkeys((*self.requests.tolist(), *self.joined)))

    @property
    def doubtful(self) -> list[Transfer]:
        """Copies that it waited for and that broke off, or may yet."""
        return [transfer for transfer in self.waits if transfer.is_doubtful]


F = TypeVar("F")


class Flights(dict[int, F]):
    """A stage's steps in flight, in the order in which they are reported. F: what is noted of one."""

    @property
    def last(self) -> int | None:
        """What is given up now may still be named by this step; None: by none."""
        return next(reversed(self), None)
