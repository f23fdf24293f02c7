"""How near live listeners came to silence: newcomers are refused before anybody hears a gap.

The guard judges by lead, the seconds of audio that a listener has left (`core.playback`), and not by the rate
at which audio is made. A reply that is paced on purpose is made as fast as it is heard and keeps its lead; in
an engine too slow for its load leads fall towards 0.

A reply counts from GRACE_S after its first audio on, or from a gap of GAP_S. Its lead is least just before
more audio comes. A reply that is made as fast as possible, at r seconds a second of audio, has by then
GRACE_S * (1 / r - 1) and its first chunk: 0.6 s where r is 0.4 to 0.5, by the length of the chunks. So with a
bound of 0.6 s an engine refuses newcomers once half of its speed is used. It needs the other half: people are
let in before they speak, and several of them before the first shows that they are too many. For the same
reason the worst of the last HOLD_S counts: people who listen or think now will speak again. Once a session is
closed its leads are forgotten: its listener has gone.

A reply that has put out nothing yet counts as if it had FIRST_OUTPUT_S of audio from its request on: its
listener hears silence too. What was played is told by the clock, unless a client reports less: it was paused,
and the engine, which goes by the same report, makes no more of its reply until it plays on. A report never
shortens a lead: false ones would let one client refuse all others. Pure: times are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

from antiphon.core.playback import Playback
from antiphon.metrics.continuity import GAP_S

GRACE_S = 0.5
"""First chunks are small on purpose."""
FIRST_OUTPUT_S = 5.0
HOLD_S = 15.0
BUCKET_S = 0.25
"""Leads are noted once in such a stretch of time, unless they fall."""


class _Leads:
    """The least lead that one session had in the last HOLD_S."""

    __slots__ = ("_rising",)

    def __init__(self) -> None:
        self._rising = deque[tuple[float, float]]()
        """When, and how much: a lead is dropped once a later one is less."""

    def note(self, lead_s: float, now: float) -> None:
        if lead_s == inf:
            return
        rising = self._rising
        while rising and rising[0][0] <= now - HOLD_S:
            rising.popleft()
        while rising and rising[-1][1] >= lead_s:
            rising.pop()
        if not rising or now - rising[-1][0] >= BUCKET_S:
            rising.append((now, lead_s))

    def least_s(self, now: float) -> float:
        return next((lead_s for noted_at, lead_s in self._rising if noted_at > now - HOLD_S), inf)


class _Reply:
    """A live spoken reply in the making."""

    __slots__ = ("asked_at", "is_writing", "item", "leads", "playback")

    def __init__(self, now: float, leads: _Leads, item: str) -> None:
        self.asked_at = now
        self.item = item
        self.leads = leads
        """Its session's."""
        self.is_writing = False
        """Its last output was text. After its audio this may be a tool call, which is not spoken."""
        self.playback = Playback()

    def lead_s(self, now: float) -> float:
        """Seconds until its listener hears nothing; inf where that is not told yet."""
        first_at = self.playback.first_at
        if first_at is None:
            return inf if self.is_writing else FIRST_OUTPUT_S - (now - self.asked_at)
        is_new = now - first_at < GRACE_S and now - self.playback.dry_at < GAP_S
        return inf if is_new else self.playback.lead_s(now)


class Pressure:
    """Folds what live spoken replies put out into the least lead that any of them had lately. Replies that it
    was not told of by `asked` are passed over."""

    def __init__(self) -> None:
        self._replies: dict[str, _Reply] = {}
        self.on_gap: Callable[[], object] = lambda: None
        """Called when more of a reply comes after its audio had run out for GAP_S or longer."""
        self._leads: dict[str, _Leads] = {}
        """By session."""

    def asked(self, response: str, now: float, session: str = "", item: str = "") -> None:
        """A reply is wanted, in a session; item: what it becomes."""
        self._replies[response] = _Reply(now, self._leads.setdefault(session, _Leads()), item)

    def left(self, session: str) -> None:
        """The session is closed: nothing of it counts any more."""
        leads = self._leads.pop(session, None)
        for response in [key for key, reply in self._replies.items() if reply.leads is leads]:
            del self._replies[response]

    def wrote(self, response: str, now: float) -> None:
        """Some of its text was made."""
        reply = self._replies.get(response)
        if reply is not None:
            if reply.playback.first_at is None:
                reply.leads.note(reply.lead_s(now), now)
            reply.is_writing = True

    def heard(self, response: str, audio_s: float, now: float) -> None:
        """Some of its audio was made: its lead was least just before."""
        reply = self._replies.get(response)
        if reply is not None:
            reply.leads.note(reply.lead_s(now), now)
            if reply.playback.first_at is not None and now - reply.playback.dry_at >= GAP_S:
                self.on_gap()
            reply.is_writing = False
            reply.playback.add(audio_s, now)

    def reported(self, response: str, played_s: float, now: float) -> None:
        """Its client has played so much of it. Nothing changes where that is more than the clock says."""
        reply = self._replies.get(response)
        if reply is not None and reply.playback.audio_s - played_s > reply.playback.lead_s(now):
            reply.playback.acked(played_s, now)

    def cut(self, item: str) -> None:
        """The client has stopped playing the reply that becomes this item, though it may still be made."""
        self._replies = {key: reply for key, reply in self._replies.items() if reply.item != item}

    def ended(self, response: str, now: float) -> None:
        """All of it was made, or it was cancelled."""
        reply = self._replies.pop(response, None)
        if reply is not None and reply.playback.first_at is None:
            reply.leads.note(reply.lead_s(now), now)

    def least_lead_s(self, now: float) -> float:
        """The least lead of the last HOLD_S, of sessions that are open; inf where nothing was told."""
        leads_s = [reply.lead_s(now) for reply in self._replies.values() if not reply.is_writing]
        kept_s = [leads.least_s(now) for leads in self._leads.values()]
        return min([*leads_s, *kept_s], default=inf)
