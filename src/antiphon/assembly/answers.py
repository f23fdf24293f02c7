"""Answers of policies, checked and made anew: plain values of the types that the protocols name, which no
policy can change afterwards and which a record holds as they are.

An answer that cannot be made so raises NonsenseError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isnan, nan
from reprlib import repr as shortened
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Ints, Mask
from antiphon.policy.base import DeviceChoice, Hold, Refuse, StepChoice, StepView, Told
from antiphon.policy.memory import NOTHING, KvView, Selection

MAX_S = 1e15
"""Times beyond it lie millions of years ahead, or are in another unit."""
MAX_TEXT = 200
"""Characters of a reason; the rest is cut off."""
MAX_INT = (1 << 63) - 1
"""Of a column, and of a record."""


class NonsenseError(Exception):
    """A policy's answer is none."""


def check_step(view: StepView, choice: Any) -> StepChoice:
    """Raises NonsenseError for what no step can be made of."""
    _is_a(choice, StepChoice)
    ready = view.ready
    order = _indices("order", choice.order, len(ready))
    preempt = _indices("preempt", choice.preempt, view.num_rows)
    counts, urgency = _beside(order, "counts", choice.counts), _beside(order, "urgency", choice.urgency)
    if counts is not None and len(counts) and (least := int(counts.min())) < 1:
        raise NonsenseError(f"counts: {least} is below 1")
    keeps = None if choice.keeps is None else _mask("keeps", choice.keeps, len(preempt))
    wake_at = _wake(choice.wake_at)
    if wake_at is None and not len(preempt) and not ready[order].any() and ready.any():
        raise NonsenseError("order: it has nothing that could run, though something could; say wake_at")
    stops, moves = _truth("stops", choice.stops), _truth("moves", choice.moves)
    return StepChoice(order, _reason(choice.reason), counts, urgency, preempt, keeps, stops, wake_at, moves)


def check_hold(view: StepView, hold: Any) -> Hold:
    _is_a(hold, Hold)
    held = None if hold.held is None else _mask("held", hold.held, len(view.ready))
    wake_at = _wake(hold.wake_at)
    if held is not None and wake_at is None:
        ready = view.ready
        if ready.any() and not (ready & ~held).any():
            raise NonsenseError("held: all that could run is, and wake_at does not say until when")
    spared = None if hold.spared is None else _mask("spared", hold.spared, len(view.ready))
    return Hold(held, _reason(hold.reason), wake_at, spared)


def check_admission(view: StepView, answer: Any) -> Refuse | None:
    if answer is None:
        return None
    _is_a(answer, Refuse)
    predicted_s = nan if _is_nan(answer.predicted_s) else _seconds("predicted_s", answer.predicted_s)
    retry_s = _seconds("retry_s", answer.retry_s, "time to wait")
    if retry_s < 0:
        raise NonsenseError(f"retry_s: {retry_s} is not a time to wait")
    return Refuse(_reason(answer.reason), predicted_s, retry_s)


def check_device(heads: Any, choice: Any) -> DeviceChoice:
    _is_a(choice, DeviceChoice)
    index = _index("index", choice.index, len(heads))
    return DeviceChoice(index, _wake(choice.wake_at), _reason(choice.reason))


def check_replica(view: Any, index: Any) -> int:
    return _index("the replica", index, len(view.loads))


def check_selection(view: KvView, selection: Any) -> Selection:
    """Owners are taken one by one, as far as they are needed, so that the check must not ask for them all."""
    if selection is NOTHING:
        return NOTHING
    _is_a(selection, Selection)
    count = _integer("count", selection.count, "number of blocks")
    if count < 0:
        raise NonsenseError(f"count: {_shown(count)} is not a number of blocks")
    owners, groups, reach = selection.owners, selection.groups, selection.reach
    if not isinstance(owners, Iterable):
        raise NonsenseError(f"owners: {type(owners).__name__} is not a sequence of names")
    return Selection(
        map(_owner, cast(Iterable[Any], owners)),
        min(count, view.num_blocks * len(view.groups)),
        _reason(selection.reason),
        None if groups is None else _groups(view, groups),
        None if reach is None else _reach(reach),
        _wake(selection.wake_at),
        _truth("is_first", selection.is_first),
        _truth("displaces", selection.displaces),
    )


def check_told(told: Any) -> Told:
    _is_a(told, Told)
    return Told(_reason(told.label), _reason(told.why), _wake(told.until))


CHECKS: dict[str, Callable[[Any, Any], Any]] = {
    "step": check_step,
    "pace": check_hold,
    "admission": check_admission,
    "device": check_device,
    "replica": check_replica,
    "evict": check_selection,
    "write": check_selection,
    "fetch": check_selection,
}


def plain_text(value: str) -> str:
    """A text that can be encoded, cut to what people read."""
    return str.encode(value[:MAX_TEXT], "utf-8", "replace").decode()


def said(error: BaseException) -> str:
    """A policy's error for the log: its kind, and its words if it has any that can be read."""
    kind = type(error).__name__
    try:
        return plain_text(f"{kind}: {error}")
    except Exception:
        return plain_text(kind)


def _is_a(answer: Any, kind: type) -> None:
    if not isinstance(answer, kind):
        raise NonsenseError(f"{type(answer).__name__} is not a {kind.__name__}")


def _shown(value: Any) -> str:
    """The value for a message; its type's name where it cannot be shown."""
    try:
        return shortened(value)
    except Exception:
        return type(value).__name__


def _reason(value: Any) -> str:
    if not isinstance(value, str):
        raise NonsenseError(f"reason: {_shown(value)} is not text")
    return plain_text(value)


def _owner(value: Any) -> str:
    if not isinstance(value, str):
        raise NonsenseError(f"owners: {_shown(value)} is not a name")
    return str.__str__(value)


def _integer(name: str, value: Any, what: str) -> int:
    if not isinstance(value, int | np.integer):
        raise NonsenseError(f"{name}: {_shown(value)} is not a {what}")
    return int(cast(int, value))


def _index(name: str, value: Any, size: int) -> int:
    index = int(cast(int, value)) if isinstance(value, int | np.integer) else -1
    if not 0 <= index < size:
        raise NonsenseError(f"{name}: {_shown(value)} is not one of {size}")
    return index


def _seconds(name: str, value: Any, what: str = "time") -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    try:
        seconds = float(cast(float, value)) if is_number else nan
    except OverflowError:
        seconds = nan
    if not -MAX_S < seconds < MAX_S:
        raise NonsenseError(f"{name}: {_shown(value)} is not a {what}")
    return seconds


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and isnan(cast(float, value))


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise NonsenseError(f"{name}: {_shown(value)} is neither True nor False")
    return bool(cast(bool, value))


def _wake(wake_at: Any) -> float | None:
    return None if wake_at is None else _seconds("wake_at", wake_at)


def _array(value: Any) -> NDArray[Any]:
    """A copy of the column that it is, of numpy's own class, or one of no kind."""
    return np.array(cast(Any, value)) if isinstance(value, np.ndarray) else np.array(None)


def _column(name: str, value: Any) -> Ints:
    column = _array(value)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise NonsenseError(f"{name}: it must be a column of integers")
    if column.dtype == np.uint64 and len(column) and int(column.max()) > MAX_INT:
        raise NonsenseError(f"{name}: {int(column.max())} is above {MAX_INT}")
    return column.astype(np.int64, copy=False)


def _beside(order: Ints, name: str, value: Any) -> Ints | None:
    """An entry for each of `order`; None stays None."""
    if value is None:
        return None
    column = _column(name, value)
    if len(column) != len(order):
        raise NonsenseError(f"{name}: {len(column)} entries for {len(order)} candidates")
    return column


def _indices(name: str, value: Any, size: int) -> Ints:
    column = _column(name, value)
    if not len(column):
        return column
    if int(column.min()) < 0 or int(column.max()) >= size:
        raise NonsenseError(f"{name}: candidate {int(column.max())} is not one of {size}")
    if np.bincount(column).max() > 1:
        raise NonsenseError(f"{name}: a candidate is named twice")
    return column


def _mask(name: str, value: Any, size: int) -> Mask:
    mask = _array(value)
    if mask.dtype != np.bool_ or mask.shape != (size,):
        raise NonsenseError(f"{name}: it must be a mask over {size}")
    return mask


def _groups(view: KvView, groups: Any) -> tuple[str, ...]:
    """KV groups of the stage, each once."""
    named = set[Any](groups)
    if unknown := named - set(view.groups):
        raise NonsenseError(
            f"groups: {_shown(sorted(unknown, key=str))}; the KV groups are {', '.join(view.groups)}"
        )
    return tuple(group for group in view.groups if group in named)


def _reach(reach: Any) -> dict[str, int]:
    if not isinstance(reach, Mapping):
        raise NonsenseError("reach: it must map owners to numbers of blocks")
    made = {owner: _integer("reach", end, "number of blocks") for owner, end in cast(Any, reach).items()}
    if made and (least := min(made.values())) < 0:
        raise NonsenseError(f"reach: {least} is not a number of blocks")
    return made
