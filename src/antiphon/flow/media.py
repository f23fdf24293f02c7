"""Encoder outputs on their way to the units that read them, where those live in another process."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.core.conversation import Media
from antiphon.core.plans import DropMedia, Order, SendMedia
from antiphon.flow.stages import Path, Stages


@dataclass(slots=True)
class _Copy:
    """An output in a reader's process. It stays while one of the encoders that made it keeps it.

    sender  the process that was told to send it
    """

    makers: set[str]
    sender: str
    has_arrived: bool = False


class MediaRoutes:
    """Owner of which outputs were sent where, and of what of them has arrived."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._copies: dict[str, dict[int, _Copy]] = {}
        """By reader and key."""

    def bring(self, path: Path, media: tuple[Media, ...]) -> Order | None:
        """What has to be sent so that these encoded media reach the reader; None if all is sent or local."""
        if self._stages.is_local(path.encode, path.entry):
            return None
        copies = self._copies.setdefault(path.entry, {})
        new: list[int] = []
        for part in media:
            if part.key in copies:
                copies[part.key].makers.add(path.encode)
            else:
                copies[part.key] = _Copy({path.encode}, path.encode)
                new.append(part.key)
        return SendMedia(path.encode, path.entry, tuple(new)) if new else None

    def has_arrived(self, path: Path, media: tuple[Media, ...]) -> bool:
        """Are they where they are read?"""
        if self._stages.is_local(path.encode, path.entry):
            return True
        copies = self._copies.get(path.entry, {})
        return all(part.key in copies and copies[part.key].has_arrived for part in media)

    @property
    def are_under_way(self) -> bool:
        """Was any sent that has not arrived, and that a request waits for?"""
        pins = {name: encoder.pins for name, encoder in self._stages.encoders.items()}
        return any(
            not copy.has_arrived and any(key in pins.get(maker, ()) for maker in copy.makers)
            for copies in self._copies.values()
            for key, copy in copies.items()
        )

    def arrived(self, unit: str, keys: tuple[int, ...]) -> None:
        copies = self._copies.get(unit, {})
        for key in keys:
            if key in copies:
                copies[key].has_arrived = True

    def drop(self, encoder: str, keys: tuple[int, ...]) -> list[Order]:
        """The encoder's outputs, and the copies that no other encoder made."""
        return [DropMedia(encoder, keys), *self._give_up(encoder, keys)]

    def lose(self, unit: str) -> list[Order]:
        """The unit is gone, and what it had. What it was to send is sent by another that made it."""
        self._copies.pop(unit, None)
        orders: list[Order] = self._give_up(unit, None)
        for reader, copies in self._copies.items():
            for key, copy in copies.items():
                if copy.sender == unit and not copy.has_arrived:
                    copy.sender = min(copy.makers)
                    orders.append(SendMedia(copy.sender, reader, (key,)))
        return orders

    def _give_up(self, encoder: str, keys: tuple[int, ...] | None) -> list[Order]:
        """The encoder keeps these (None: all that it made) no more."""
        orders: list[Order] = []
        for reader, copies in self._copies.items():
            mine = [key for key in (copies if keys is None else keys) if key in copies]
            for key in mine:
                copies[key].makers.discard(encoder)
            gone = tuple(key for key in mine if not copies[key].makers)
            for key in gone:
                del copies[key]
            if gone:
                orders.append(DropMedia(reader, gone))
        return orders
