"""One session's story: what happened to it, when, and why the policies had it so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from antiphon.stage.kv_asks import KvMove


class Cause(StrEnum):
    """What a request of a stage waits for."""

    MEDIA = "media"
    UPSTREAM = "upstream input"
    DOWNSTREAM = "credit of the next stage"
    KV_COMING = "KV from the host"
    ROW = "a row"
    BLOCKS = "KV blocks"
    HELD = "the pace policy"
    ORDER = "others before it in the step's order"
    DEVICE = "the step under way on its device"


PIPELINE = (Cause.UPSTREAM, Cause.DOWNSTREAM)
"""Waits of a stage that keeps step with its neighbours. In all others but `HELD` something is short."""

Spent = Mapping[tuple[Cause, str], float]
"""Seconds by cause and the policy's reason ("" where no policy is the cause)."""

NOTHING: Spent = {}


class What(StrEnum):
    """Kinds of events, in words with their amounts. Of KV they are named as in `stage.kv_asks.KvMove`."""

    SPEAKS = "the person speaks"
    SPEAKS_OVER = "the person speaks over the reply, with {left_s:.3f} s of it sent and not yet heard"
    BEGINS = "the first turn begins: its instructions are read ahead, if no reply is being made"
    PAUSES = "the person pauses: the turn so far is read ahead, if no reply is being made"
    CLEARED = "the client drops what was said: no turn comes of it"
    SILENT = "the person is silent"
    SAID = "the person's words are in the conversation"
    ADVISED = "the client says that the next turn is coming"
    READS_AHEAD = "what there is of the turn is read ahead from now on"
    NOT_AHEAD = "nothing of the turn is read ahead"
    READ_AHEAD = "read ahead of the turn: {tokens:.0f} tokens in {took_s:.3f} s"
    ASKED = "the turn is complete: a reply is asked for"
    TRANSCRIBED = "a transcript of what was said is asked for"
    RENDERED = "its prompt has {tokens:.0f} tokens, rendered in {took_s:.3f} s"
    JOINED = "has a row after {waited_s:.3f} s; {cached:.0f} of {tokens:.0f} tokens cached"
    HELD = "held back for the first time"
    PREEMPTED = "preempted, its KV given up"
    PREEMPTED_KEEPING = "preempted, its KV kept"
    EVICTED = "KV blocks evicted: {blocks:.0f}"
    TAKEN = "KV blocks evicted beyond what the policy chose: {blocks:.0f}"
    COPIED = "evicted KV blocks copied to the host: {blocks:.0f}"
    WRITTEN = "KV blocks copied to the host before they had to leave: {blocks:.0f}"
    DROPPED = "KV blocks dropped by the host: {blocks:.0f}"
    FETCHED = "KV blocks fetched from the host on demand: {blocks:.0f}"
    PRELOADED = "KV blocks preloaded from the host: {blocks:.0f}"
    ARRIVED = "KV blocks back from the host: {blocks:.0f}"
    COPY_FAILED = "KV blocks whose copy failed: {blocks:.0f}"
    NOT_PRELOADED = "its KV is not preloaded for the turn"
    PART_PRELOADED = "a part of its KV is preloaded for the turn"
    PRELOAD_USED = (
        "preloaded KV blocks read: {blocks:.0f}, begun {ahead_s:.3f} s before the turn was complete"
    )
    PRELOAD_USED_LATE = (
        "preloaded KV blocks read: {blocks:.0f}, begun {late_s:.3f} s after the turn was complete"
    )
    PRELOAD_UNUSED = "preloaded KV blocks not read: {blocks:.0f}, begun {after_s:.3f} s ago"
    WOULD_RUN = "observed: it would have run in a step"
    WOULD_WAIT = "observed: it would not have run in a step"
    WOULD_PREEMPT = "observed: it would have been preempted"
    WOULD_HOLD = "observed: it would have been held back"
    WOULD_EVICT = "observed: KV would have been evicted"
    WOULD_KEEP = "observed: KV would not have been evicted"
    WOULD_WRITE = "observed: KV would have been copied to the host early"
    WOULD_FETCH = "observed: KV would have been fetched or preloaded from the host"
    FIRST_TEXT = "first text, {after_s:.3f} s after the turn was complete"
    FIRST_WORDS = "first words of the transcript, {after_s:.3f} s after it was asked for"
    FIRST_AUDIO = "first audio, {after_s:.3f} s after the turn was complete"
    GAP = "silence of {gap_s:.3f} s in the midst of the reply"
    WITHHELD = "output is kept from the client: it may be an interruption"
    RELEASED = "output goes to the client again: it was no interruption"
    WORKED = "in steps for {ran_s:.3f} s"
    CUT = "cut: {heard_s:.3f} s heard of {made_s:.3f} s made, {unheard_s:.3f} s never heard"
    KEPT = "cut: tokens of it that stay in the conversation: {kept:.0f}"
    ENDED = "ended: {text:.0f} tokens of text, {made_s:.3f} s of audio"
    UNFINISHED = "is still being made where the record ends"
    CLOSED = "the session is closed"


MERGED = (
    *(What[move.name] for move in KvMove),
    What.ARRIVED,
    What.NOT_PRELOADED,
    What.PART_PRELOADED,
    What.ADVISED,
    What.NOT_AHEAD,
    What.GAP,
    *(one for one in What if one.name.startswith("WOULD_")),
)
"""Told as one event where nothing else happens in between."""


@dataclass(slots=True)
class Event:
    """Something that happened; seconds since the session began.

    where    the unit; "": none
    amounts  as `what` names them
    reason   as the policy or the outcome gives it
    kind     the class of the reason, where it has one: by that it is told with others
    spent    where the event ends a wait: what the time went to
    times    how often, up to `until_s`
    """

    at_s: float
    what: What
    where: str
    response: str
    amounts: dict[str, float]
    reason: str
    spent: Spent
    times: int
    until_s: float
    kind: str = ""

    @property
    def words(self) -> str:
        """Without its reason and what it waited for."""
        return self.what.value.format(**self.amounts)


class Story:
    """Of one session, in order."""

    def __init__(self, session: str, opened_at: float) -> None:
        self.session = session
        self.opened_at = opened_at
        self.events: list[Event] = []

    def add(
        self,
        now: float,
        what: What,
        where: str = "",
        response: str = "",
        *,
        reason: str = "",
        kind: str = "",
        spent: Spent = NOTHING,
        **amounts: float,
    ) -> None:
        """One more event."""
        at_s = now - self.opened_at
        event = Event(at_s, what, where, response, amounts, reason, spent, 1, at_s, kind)
        same = self._same(event)
        if same is None:
            self.events.append(event)
        else:
            same.amounts = {name: same.amounts[name] + amount for name, amount in amounts.items()}
            same.times += 1
            same.until_s, same.reason = at_s, reason

    def _same(self, event: Event) -> Event | None:
        """The one that it is told with."""
        for last in reversed(self.events if event.what in MERGED else ()):
            if last.what not in MERGED:
                break
            if _merges(last) == _merges(event):
                return last
        return None

    def of(self, *kinds: What) -> Iterator[Event]:
        return (event for event in self.events if event.what in kinds)

    def total(self, amount: str, *kinds: What) -> float:
        return sum(event.amounts[amount] for event in self.of(*kinds))

    @property
    def waited_s(self) -> float:
        """Of all its requests, for what was short."""
        return sum(s for cause, s in self._spent() if cause not in (*PIPELINE, Cause.HELD))

    @property
    def held_s(self) -> float:
        """Of all its requests, because they were far enough ahead of what is heard."""
        return sum(s for cause, s in self._spent() if cause is Cause.HELD)

    def _spent(self) -> Iterator[tuple[Cause, float]]:
        """What its requests waited for beside their steps, in seconds."""
        for event in self.of(What.WORKED):
            yield from ((cause, s) for (cause, _), s in event.spent.items())

    @property
    def responses(self) -> list[str]:
        """By name, in the order in which they were asked for; transcripts too."""
        return [event.response for event in self.of(What.ASKED, What.TRANSCRIBED)]

    def about(self, response: str) -> list[Event]:
        """Of one response, and what befell the session from the speech that led to it up to its end."""
        events = self.events
        own = [at for at, event in enumerate(events) if event.response == response]
        first = begin = own[0]
        while begin and not events[begin - 1].response:
            begin -= 1
            if events[begin].what in (What.SPEAKS, What.SAID):
                first = begin
        return [event for event in events[first : own[-1] + 1] if event.response in ("", response)]


def _merges(event: Event) -> tuple[What, str, str, str]:
    """What is the same of events that are told as one."""
    return event.what, event.where, event.response, event.kind or event.reason
