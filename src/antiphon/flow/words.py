"""What people have said, for clients that show it: of a recording as it is written down, or of a turn that is
not over.

The words of a turn that is not over delay no reply. A recording that is written down for something else is
shown as soon as that is done. One other at a time is written down for its words alone, by a preparatory
request: its steps run where nothing else can, or where those who listen have enough sound ahead (`spare_s`),
so that people who wait for a first sound, or would run dry, are served first, and one person's long reply
does not hide the words of all others.
"""

from __future__ import annotations

from math import inf

import numpy as np

from antiphon.core.conversation import Item
from antiphon.core.facts import ResponseRequested, WordsWanted
from antiphon.core.plans import TokensOut, WordsHeard, ints
from antiphon.flow.outbox import Outbox
from antiphon.flow.reply_route import ENTRY
from antiphon.flow.response import ResponseState
from antiphon.flow.sessions import Sessions
from antiphon.flow.transcripts import Transcripts
from antiphon.interaction.frontier import NOWHERE, Frontier
from antiphon.policy.base import Tier


class Words:
    """Owner of the turns whose words wait to be written down, at most one a session, and of those whose words
    are."""

    def __init__(
        self, sessions: Sessions, transcripts: Transcripts, outbox: Outbox, frontier: Frontier
    ) -> None:
        self._sessions = sessions
        self._transcripts = transcripts
        self._outbox = outbox
        self._frontier = frontier
        self._wanted: dict[str, WordsWanted] = {}
        """By session, in the order in which they began to wait."""
        self._running: dict[str, tuple[ResponseState, WordsWanted]] = {}
        """By session."""

    def want(self, fact: WordsWanted) -> None:
        """Show the words of this recording once there is time, instead of an earlier one of the session whose
        transcript has not begun."""
        if self._transcripts.stage is None or not self._sessions.is_open(fact.session):
            return
        self._wanted[fact.session] = fact
        _, running = self._running.get(fact.session, (None, None))
        if running is not None and not self._transcripts.has_row(running.parts):
            self._stop(fact.session)

    def forget(self, session: str) -> None:
        """The turn is over, or the session: nothing more of it is shown."""
        self._wanted.pop(session, None)
        self._stop(session)

    def _stop(self, session: str) -> None:
        response, _ = self._running.pop(session, (None, None))
        if response is not None and response.request in self._sessions.by_request:
            self._sessions.end(response, "cancelled", "")

    def settle(self, now: float) -> None:
        """Send what is written. Begin recordings whose transcript exists or is being made, and one other if
        none is; a session's next ones as soon as its last ones are shown."""
        for session, (response, _) in list(self._running.items()):
            if response.request not in self._sessions.by_request:
                del self._running[session]
        self._begin_wanted(now)
        while self._show(now):
            self._begin_wanted(now)

    def _show(self, now: float) -> bool:
        """Send what is written. Is a session free for its next words?"""
        is_free = False
        for response in self._transcripts.asked:
            tokens, is_all = self._transcripts.said(response)
            if not response.is_ahead:
                self._tell(response, tokens[len(response.reply) :], now)
            elif is_all:
                _, wanted = self._running.pop(response.session)
                words = WordsHeard(wanted.session, wanted.item_id, ints(tokens), wanted.is_pause)
                self._outbox.words.append(words)
                is_free = True
            if is_all:
                self._sessions.end(response, "completed", "")
        return is_free

    def _tell(self, response: ResponseState, tokens: list[int], now: float) -> None:
        """These were written since the last ones."""
        spec, stage = response.spec, self._transcripts.stage
        if not tokens:
            return
        assert stage is not None, "what is written down is written by a stage"
        response.reply += tokens
        self._frontier.make(ENTRY, response.slot, len(tokens), now)
        self._outbox.outputs.append(TokensOut(spec.session, spec.response, stage, ints(tokens)[:, None]))

    def _begin_wanted(self, now: float) -> None:
        for session, wanted in list(self._wanted.items()):
            is_free = self._transcripts.has_begun(wanted.parts)
            if session not in self._running and (is_free or not self._transcripts.is_preparing):
                del self._wanted[session]
                self._begin(wanted, now)

    def _begin(self, wanted: WordsWanted, now: float) -> None:
        item = Item(wanted.item_id, "user", wanted.parts)
        spec = ResponseRequested(
            wanted.session, "", "", speech=False, remember=False, items=(item,), transcribe=True
        )
        response = self._sessions.begin_ahead(spec, (item,))
        self._running[wanted.session] = response, wanted
        self._transcripts.render(response, now)

    # -- time for it ---------------------------------------------------------------------------------

    @property
    def is_writing(self) -> bool:
        """Is a recording written down only to show its words so far?"""
        return self._transcripts.is_preparing

    def spare_s(self, now: float, is_idle: bool) -> float:
        """How long a device may work for this without delaying what anybody hears: until the first listener
        runs dry, and not at all while a person waits for the first of a reply. What is read, or not awaited
        by anyone, goes before unless the device is idle."""
        slots: list[int] = []
        for response in self._sessions.responses.values():
            is_awaited = response.tier is Tier.LATENCY
            slot = response.slot
            if is_awaited and (slot == NOWHERE or not self._frontier.begun(np.array([slot]))[0]):
                return 0.0
            if is_awaited and response.is_spoken:
                slots.append(slot)
            elif not is_idle:
                return 0.0
        leads_s = self._frontier.heard_leads_s(np.array(slots, np.intp), now)
        return float(np.nan_to_num(leads_s).min(initial=inf))
