"""What a session's replies said, how far that was heard, and where they were cut."""

from __future__ import annotations

from antiphon.core.errors import ProtocolError
from antiphon.core.playback import Playback
from antiphon.wire.cut import CHARS_PER_S, Cut, heard, heard_words

OVERSHOOT_MS = 100
"""Clients round, and count what their device still holds: so much beyond the end means the end."""
MOST_PAUSED_S = 60.0
"""A client may say that so much less was played than there was time for: it was paused, or had gaps. The
engine waits no longer for a listener."""


class Reported:
    """What was sent of a reply, in seconds, and how far its client says that it was heard or read."""

    def __init__(self) -> None:
        self.playback = Playback()
        self.soonest = Playback()
        """The playback if it never pauses: no client plays faster."""
        self.pause_left_s = MOST_PAUSED_S
        """So much less than there was time for may have been played."""

    def sounded(self, audio_s: float, now: float) -> None:
        """More of it was sent."""
        self.playback.add(audio_s, now)
        self.soonest.add(audio_s, now)

    def acked(self, played_s: float, now: float) -> float | None:
        """The client reports what it has played; None where that tells nothing new. Returns what the engine
        is told of it: no more than there was time for, because who is about to run dry goes before others,
        and not much less, because a reply that is far ahead waits and keeps its place."""
        if not self.playback.acked(played_s, now):
            return None
        most_s = self.soonest.played_s(now)
        return min(max(played_s, most_s - self.pause_left_s), most_s)


class Spoken(Reported):
    """One reply's words and sound. `cut` None: all of it counts as heard."""

    def __init__(self, response: str, item_id: str, speech: bool) -> None:
        super().__init__()
        self.response, self.item_id, self.speech = response, item_id, speech
        self.text = ""
        self.token_ends: list[int] = []
        self.words: list[tuple[float, int]] = []
        """Where the voice knows it: when each word ends in its sound, and how many tokens are over then."""
        self.is_growing = True
        self.cut: Cut | None = None
        self.unheard_s: float | None = None
        """Seconds of what was sent that were never heard, as its cut counts; None: it was not cut."""
        self.is_truncated = False
        """The client said itself what was heard: no estimate overrules it."""
        self.has_call = False
        """It calls a tool. Such a reply is never cut: its call was made, and stands behind its words."""

    @property
    def shown(self) -> str | None:
        """The text that counts as heard; None: all of it."""
        return None if self.cut is None else self.text[: self.cut.num_chars]

    def wrote(self, text: str) -> None:
        """One more token, and the text that is certain with it."""
        self.text += text
        self.token_ends.append(len(self.text))

    def flushed(self, text: str) -> None:
        """Text that was held back until no token followed: it belongs to the last."""
        self.text += text
        if self.token_ends:
            self.token_ends[-1] = len(self.text)


class Speeches:
    """The replies that may still be cut: those that run, and those whose item is in the conversation."""

    def __init__(self) -> None:
        self._by_item: dict[str, Spoken] = {}
        self._num_chars = 0
        self._audio_s = 0.0
        self.num_cut = 0
        """Replies of which sound was sent, and that were interrupted or truncated."""
        self.unheard_s = 0.0
        """Sound of those replies that was sent and never heard, in all. It never falls: where an estimate and
        the client's report differ, the larger counts."""

    @property
    def chars_per_s(self) -> float:
        """The running rate of this session's complete replies."""
        return self._num_chars / self._audio_s if self._num_chars and self._audio_s else CHARS_PER_S

    def add(self, spoken: Spoken) -> None:
        self._by_item[spoken.item_id] = spoken

    def forget(self, item_id: str) -> None:
        self._by_item.pop(item_id, None)

    def find(self, item_id: object, response: object) -> Spoken | None:
        """By either name; None if the reply is not, or no longer, known."""
        by_item = self._by_item.get(item_id) if isinstance(item_id, str) else None
        return by_item or next((s for s in self._by_item.values() if s.response == response), None)

    def completed(self, spoken: Spoken) -> None:
        """All its words and sound are there."""
        spoken.is_growing = False
        self._num_chars += len(spoken.text)
        self._audio_s += spoken.playback.audio_s

    def audible(self, now: float) -> list[Spoken]:
        return [s for s in self._by_item.values() if s.speech and s.playback.is_audible(now)]

    def interrupt(self, spoken: Spoken, now: float) -> int | None:
        """Cut a reply to what was heard by now; returns how many of its tokens that is, None for all of what
        was written: text that is shown is read."""
        played_s = spoken.playback.played_s(now)
        spoken.playback.stop(now)
        self._count(spoken, played_s)
        if not spoken.speech or spoken.has_call:
            return None
        if not spoken.is_truncated:
            spoken.cut = self._heard(spoken, played_s)
        return spoken.cut.num_tokens if spoken.cut else None

    def truncate(self, spoken: Spoken, audio_end_ms: int, now: float) -> int:
        """The client's own word on what was heard, in either direction. Returns the end that counts; raises
        ProtocolError where it is far beyond the audio."""
        sent_s = spoken.playback.audio_s
        sent_ms = round(1000.0 * sent_s)
        if audio_end_ms > sent_ms + OVERSHOOT_MS:
            raise ProtocolError(
                f"Audio content of {sent_ms}ms is already shorter than {audio_end_ms}ms.",
                param="audio_end_ms",
            )
        end_ms = min(audio_end_ms, sent_ms)
        if not spoken.has_call:
            spoken.cut = self._heard(spoken, sent_s if end_ms == sent_ms else end_ms / 1000.0)
            spoken.is_truncated = True
        spoken.playback.stop(now)
        self._count(spoken, end_ms / 1000.0)
        return end_ms

    def _count(self, spoken: Spoken, heard_s: float) -> None:
        """Once, however often it is cut."""
        if not spoken.playback.audio_s:
            return
        self.num_cut += spoken.unheard_s is None
        unheard_s = max(spoken.playback.audio_s - heard_s, spoken.unheard_s or 0.0)
        self.unheard_s += unheard_s - (spoken.unheard_s or 0.0)
        spoken.unheard_s = unheard_s

    def _heard(self, spoken: Spoken, played_s: float) -> Cut:
        if spoken.words:
            is_all = not spoken.is_growing and played_s >= spoken.playback.audio_s
            return heard_words(spoken.token_ends, spoken.words, None if is_all else played_s)
        rate = self.chars_per_s if spoken.is_growing else None
        return heard(spoken.text, spoken.token_ends, played_s, spoken.playback.audio_s, rate)
