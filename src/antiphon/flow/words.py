"""What people have said so far in turns that are not over, for clients that show it.

It delays no reply: a recording is written down for it only while nothing else is made or read, one at a time,
and that ends when a reply is asked for or a turn's pause is read. Where the recording is written down for
something else, its words cost nothing and are shown as soon as they are there.
"""

from __future__ import annotations

from antiphon.core.conversation import Item
from antiphon.core.facts import PromptReady, ResponseRequested, WordsWanted
from antiphon.core.plans import WordsHeard
from antiphon.flow.outbox import Outbox
from antiphon.flow.response import ResponseState
from antiphon.flow.sessions import Sessions
from antiphon.flow.transcripts import Transcripts


class Words:
    """Owner of the recordings that wait, at most one a session, and of those that are being written down."""

    def __init__(self, sessions: Sessions, transcripts: Transcripts, outbox: Outbox) -> None:
        self._sessions = sessions
        self._transcripts = transcripts
        self._outbox = outbox
        self._wanted: dict[str, WordsWanted] = {}
        """By session, in the order in which they began to wait."""
        self._running: dict[str, tuple[ResponseState, WordsWanted]] = {}
        """By session."""

    def want(self, fact: WordsWanted) -> None:
        """Show the words of this recording once nothing else runs, instead of an earlier one that waits."""
        if self._transcripts.can_write and self._sessions.is_open(fact.session):
            self._wanted[fact.session] = fact

    def forget(self, session: str) -> None:
        """The turn is over: drop the recording that waits."""
        self._wanted.pop(session, None)

    def stop(self) -> None:
        """Cancel what runs: a reply, or the reading of a pause, begins. It is not tried again."""
        for response, _ in self._running.values():
            if response.request in self._sessions.by_request:
                self._sessions.end(response, "cancelled", "")
        self._running.clear()

    def close(self, session: str) -> None:
        """The session ends."""
        self.forget(session)
        response, _ = self._running.pop(session, (None, None))
        if response is not None and response.request in self._sessions.by_request:
            self._sessions.end(response, "cancelled", "")

    def rendered(self, response: ResponseState, fact: PromptReady) -> bool:
        """Send the words, which are this response's reply. False if the response shows no words."""
        running, wanted = self._running.get(response.session, (None, None))
        if running is not response or wanted is None:
            return False
        assert fact.reply is not None
        del self._running[response.session]
        self._sessions.end(response, "completed", "")
        self._outbox.hear(WordsHeard(wanted.session, wanted.item_id, fact.reply, wanted.is_pause))
        return True

    def settle(self, now: float) -> None:
        """Begin recordings whose transcript exists or is being made, and one other if nothing else runs."""
        for session, (response, _) in list(self._running.items()):
            if response.request not in self._sessions.by_request:
                del self._running[session]
        for session, wanted in list(self._wanted.items()):
            is_free = self._transcripts.has_begun(wanted.audio, wanted.options)
            if session not in self._running and (is_free or not self._sessions.by_request):
                del self._wanted[session]
                self._begin(wanted, now)

    def _begin(self, wanted: WordsWanted, now: float) -> None:
        item = Item(wanted.item_id, "user", (wanted.audio,))
        spec = ResponseRequested(
            wanted.session,
            "",
            "",
            speech=False,
            remember=False,
            items=(item,),
            transcribe=True,
            transcripts=wanted.options,
        )
        response = self._sessions.begin_ahead(spec, (item,))
        self._running[wanted.session] = response, wanted
        self._transcripts.render(response, now)
