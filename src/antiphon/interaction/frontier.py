"""How far each response has been made, stage by stage, ahead of what its person has heard, in columns: one
slot a response, so that thousands are read at once. Knows no response by name: `monitor` gives out the slots.

What lies between a stage and the person is what the stages behind it have not taken up yet, and what the
client has not played:

    thinker --tokens--> talker --frames--> vocoder --sound--> client
       |<------------------ lead of the thinker ----------------->|
                           |<----------- of the talker ---------->|
                                              |<-- the vocoder's ->|

A talker takes up a token a frame, and a frame sounds for `frame_s`, so all of it is told in seconds. A voice
that reads takes up whole phrases: what is written of one that has no end yet is nothing ahead. A reply in
writing has a reader instead, behind the first stage, who needs 1 / rate seconds a token (TokenFlow §3.2).
"""

from __future__ import annotations

from math import inf, nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from antiphon.core.facts import Floats, Ints, Mask
from antiphon.core.playback import Source
from antiphon.core.units import WIRE_SAMPLE_RATE_HZ

Slots = NDArray[np.intp]

AUTO_PER_S = 4.0
"""Tokens a second by which what an agent has is told in seconds (TokenFlow §8)."""
AUTO_LEAD_S = 10.0
"""So far what was made for an agent counts as ahead at most: it takes all there is, so that however fast it
was served before, it is not left waiting for longer."""

NOWHERE = 0
"""The slot of a response that has none: nothing is ever made or heard of it."""


class Frontier:
    """Columns over slots. A slot that was not written since it was taken reads as nan: nothing has come."""

    def __init__(self, num_stages: int, frame_s: float, size: int = 16) -> None:
        """num_stages: that make a reply, in the order of the pipeline; frame_s: how long a frame sounds, as
        long as the vocoder has not shown it."""
        self._num_stages = num_stages
        self._tables = _tables(num_stages, size)
        self._name_columns()
        self._changes = np.zeros(size, np.int64)
        self._num_read = 0
        """Slots whose readers' pace is known."""
        self._free = list(range(size - 1, NOWHERE, -1))
        self._frame_s = frame_s
        self._sounded_frames = self._sounded_samples = 0

    def _name_columns(self) -> None:
        """Each a row of a table: to write to one of them takes half the time that a table's row does.

        rate    tokens a second that its reader takes; inf: an agent takes all there is; nan: not known
        read_s  seconds that a reader needs for a token; nan: nobody is known to read it
        told_s  seconds that its reader has read of it, by their own last word; nan: they said nothing
        most_s  what is ahead of a reader counts for so many seconds at most
        """
        seconds, flags, counts, self._made = self._tables
        self._dry_at, self._asked_at, self._rate, self._read_s, self._told_s, self._most_s = seconds
        self._begun, self._is_spoken, self._is_silent, self._is_stopped, self._is_short = flags
        self._source, self._num_gaps = counts
        self._made_by = list(self._made)

    @property
    def frame_s(self) -> float:
        """Seconds that a frame of the talker sounds."""
        if not (self._sounded_frames and self._sounded_samples):
            return self._frame_s
        return self._sounded_samples / self._sounded_frames / WIRE_SAMPLE_RATE_HZ

    # -- writing -------------------------------------------------------------------------------------

    def take(self, asked_at: float, is_spoken: bool, rate: float | Literal["auto"] | None = None) -> int:
        """A slot for a new response; rate: tokens a second that its reader takes, "auto": an agent reads it.
        A rate at which nobody can read is not known. Slots that are taken stay what they are while the
        columns grow."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._asked_at[slot], self._is_spoken[slot] = asked_at, is_spoken
        per_s = AUTO_PER_S if rate == "auto" else rate or nan
        if 0 < per_s < inf and not is_spoken:
            is_agent = rate == "auto"
            read_s = self._read_s[slot] = 1.0 / per_s
            self._rate[slot] = inf if is_agent else 1.0 / read_s
            self._most_s[slot] = AUTO_LEAD_S if is_agent else inf
            self._num_read += 1
        self._changes[slot] += 1
        return slot

    def free(self, slot: int) -> None:
        """The response is over, and heard as far as it ever will be."""
        self._num_read -= not np.isnan(self._read_s[slot])
        for table, bare in zip(self._tables, _tables(self._num_stages, 1), strict=True):
            table[:, slot] = bare[:, 0]
        self._changes[slot] += 1
        self._free.append(slot)

    def begin(self, slot: int) -> None:
        """The first of it that its person hears, or reads, has left."""
        self._begun[slot] = True
        self._changes[slot] += 1

    def play(self, slot: int, dry_at: float, source: Source = Source.ESTIMATED) -> None:
        """Its playback has changed: all that has come will have been played then (core.playback), and that is
        known from this source."""
        self._changes[slot] += 1
        self._dry_at[slot], self._source[slot] = dry_at, source

    def fall_silent(self, slot: int) -> None:
        """Its person heard a gap."""
        self._num_gaps[slot] += 1
        self._changes[slot] += 1

    def stop(self, slot: int) -> None:
        """Its client has stopped playing it: nobody hears more of it, though it is still made."""
        self._is_stopped[slot] = True
        self._changes[slot] += 1

    def fall_short(self, slot: int, is_short: bool) -> None:
        """Has its voice said all that it can of what it has read, so that the rest is no phrase yet?"""
        if self._is_short[slot] != is_short and slot != NOWHERE:
            self._is_short[slot] = is_short
            self._changes[slot] += 1

    def end_speech(self, slot: int) -> None:
        """What is written of it from now on is spoken by nobody."""
        self._is_silent[slot] = True
        self._changes[slot] += 1

    def make(self, stage: int, slots: Slots | int, units: Ints | int = 1, now: float = nan) -> None:
        """A stage has made so many tokens or frames more, of each of these, every slot once; the vocoder has
        taken up so many frames. What the first stage writes leaves for its readers `now`."""
        self._changes[slots] += 1
        if self._num_read and not stage:
            self._read(np.atleast_1d(np.asarray(slots, np.intp)), units, now)
        if isinstance(slots, int):
            self._made_by[stage][slots] += units if slots != NOWHERE else 0
        else:
            made = self._made_by[stage]
            made[slots] += units
            made[NOWHERE] = 0

    def _read(self, slots: Slots, units: Ints | int, now: float) -> None:
        """Whoever reads these has so much more to read: what comes late is waited for, by people."""
        is_read = ~np.isnan(self._read_s[slots])
        slots, units = slots[is_read], units if isinstance(units, int) else units[is_read]
        dry_at = self._dry_at[slots]
        most_s = self._most_s[slots]
        self._num_gaps[slots] += (dry_at < now) & (most_s == inf)
        since = np.fmax(dry_at, now)  # of nan and a number the latter
        self._dry_at[slots] = np.minimum(since + units * self._read_s[slots], now + most_s)
        is_told = ~np.isnan(self._told_s[slots])
        self._source[slots] = np.where(is_told, Source.ACKED, Source.ESTIMATED)

    def read_to(self, slot: int, read_s: float, now: float) -> None:
        """Its reader has read so many seconds of it, by their own account: beyond all that was made counts as
        that. Nothing changes for less than they said before, and where no person is known to read it."""
        token_s, made = self._read_s[slot], self.made(0, slot)
        if not (made and read_s >= np.fmax(self._told_s[slot], 0.0) and self._most_s[slot] == inf):
            return
        if np.isnan(token_s):
            return
        self._told_s[slot] = min(read_s, made * token_s)
        self._dry_at[slot] = now + made * token_s - self._told_s[slot]
        self._source[slot] = Source.ACKED
        self._changes[slot] += 1

    def call(self, slot: int) -> None:
        """A tool's call begins: its client takes the rest as it comes, like an agent. Nothing changes where
        nobody is known to read it. Told by the token that opens a call: what turns out to be text counts as a
        call all the same, and a model without such a token never tells."""
        if np.isnan(self._read_s[slot]):
            return
        self._read_s[slot], self._rate[slot], self._most_s[slot] = 1.0 / AUTO_PER_S, inf, AUTO_LEAD_S
        self._changes[slot] += 1

    def sound(self, num_frames: int, num_samples: int) -> None:
        """A vocoder has turned so many frames into so many samples, at the wire's rate: all the sound that
        they make, however their reply ends."""
        self._sounded_frames += num_frames
        self._sounded_samples += num_samples

    # -- reading -------------------------------------------------------------------------------------

    def num_changes(self, slots: Slots) -> int:
        """How often any of these was written: it grows with all that is read of them, but for time and
        `frame_s`."""
        return int(self._changes[slots].sum())

    def ages_s(self, slots: Slots, now: float) -> Floats:
        """Since each was asked for: float64 [n]."""
        return now - self._asked_at[slots]

    def begun(self, slots: Slots) -> Mask:
        """Has the person the first of it? bool [n]."""
        return self._begun[slots]

    def heard_leads_s(self, slots: Slots, now: float) -> Floats:
        """Seconds until each listener runs dry, nan where nothing has come: float64 [n]."""
        return np.maximum(self._dry_at[slots] - now, 0.0)

    def leads_s(self, stage: int, slots: Slots, now: float, ahead_s: Floats | None = None) -> Floats:
        """Seconds until each listener runs dry if this stage makes no more of it; inf where playback was
        stopped; nan where nothing has come, and for the stage that writes what nobody speaks: float64 [n].
        `ahead_s`: as it is told of these slots, where that is known already."""
        ahead_s = self.ahead_s(stage, slots) if ahead_s is None else ahead_s
        leads_s = self.heard_leads_s(slots, now) + ahead_s
        if not stage:
            leads_s[self._is_silent[slots]] = nan
        leads_s[self._is_stopped[slots]] = inf
        return leads_s

    def ahead_s(self, stage: int, slots: Slots) -> Floats:
        """Seconds of what this stage and those behind it have made, and is no sound yet, though it could be:
        float64 [n]."""
        if stage == len(self._made) - 1:
            return np.zeros(len(slots))
        made = self._made[stage:, slots]
        ahead = np.maximum(made[:-1] - made[1:], 0)
        ahead[-1] *= ~self._is_short[slots]
        return ahead.sum(0) * (self._is_spoken[slots] * self.frame_s)

    def sources(self, slots: Slots) -> Ints:
        """How each playback is known (core.playback.Source): int64 [n]."""
        return self._source[slots]

    def num_gaps(self, slots: Slots) -> Ints:
        """How often each listener ran dry: int64 [n]."""
        return self._num_gaps[slots]

    def rates(self, stage: int, slots: Slots) -> Floats:
        """Frames that each listener takes in a second, and tokens that each reader does, of the stage that
        writes; inf: an agent takes all there is; nan where nothing is known, and for the stage that writes
        what nobody speaks: float64 [n]."""
        rate = 1.0 / self.frame_s if self.frame_s else nan
        is_spoken = self._is_spoken[slots]
        if stage:
            return np.where(is_spoken, rate, nan)
        is_heard = is_spoken & ~self._is_silent[slots]
        return np.where(is_heard, rate, self._rate[slots])

    def made(self, stage: int, slot: int) -> int:
        """Tokens or frames that the stage has made of it."""
        return int(self._made_by[stage][slot])

    def _grow(self) -> None:
        size = len(self._dry_at)
        pairs = zip(self._tables, _tables(self._num_stages, size), strict=True)
        self._tables = [np.concatenate(pair, axis=1) for pair in pairs]
        self._name_columns()
        self._changes = np.concatenate((self._changes, np.zeros(size, np.int64)))
        self._free = list(range(2 * size - 1, size - 1, -1))


def _tables(num_stages: int, size: int) -> list[NDArray[Any]]:
    """Seconds, flags, counts, and what each stage has made, [columns, size] each: nothing has come."""
    seconds = np.full((6, size), nan)
    seconds[-1] = inf
    return [seconds, np.zeros((5, size), np.bool_), *(np.zeros((n, size), np.int64) for n in (2, num_stages))]
