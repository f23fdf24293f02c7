"""Turns a node through a record's facts and tells what became of each session.

Nothing is decided between calls: what a request waits for is read after each call and holds until the next.
The node tells its observer what policies said and where KV went. The observer changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Any

from antiphon.assembly.node import Node
from antiphon.assembly.observed import Effects
from antiphon.assembly.preloads import PreloadStories
from antiphon.assembly.story import Cause, Spent, Story, What
from antiphon.assembly.waits import OVER, RUNS, Turn, Waits
from antiphon.assembly.watched import Watched
from antiphon.core.config import NodeConfig
from antiphon.core.facts import (
    LIKELY,
    CopyDone,
    CopyFailed,
    Fact,
    ItemAdded,
    ItemCut,
    ItemRemoved,
    OutputHeld,
    OutputReleased,
    PlaybackReported,
    PromptReady,
    ResponseCancelled,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    SpeechEnded,
    SpeechStarted,
    TurnAdvised,
    TurnDropped,
    TurnForeseen,
)
from antiphon.core.plans import (
    AdvisoryAnswered,
    ArStep,
    AudioOut,
    Decision,
    Join,
    ResponseEnded,
    ResponseOutput,
    TokensOut,
    TurnAnswer,
    WordsHeard,
)
from antiphon.core.playback import Playback
from antiphon.flow.response import ResponseState
from antiphon.interaction.monitor import SECONDS_PER_BYTE
from antiphon.metrics.names import Metric
from antiphon.policy.base import Told
from antiphon.stage.ar import ArScheduler
from antiphon.stage.kv_asks import KvMove, KvMoved

WOULD = {
    done: What[f"WOULD_{done.upper()}"] for done in ("run", "preempt", "hold", "evict", "write", "fetch")
}
"""Effects that only the observed policy would have had on a request, or on an owner's KV."""
WOULD_NOT = {"run": What.WOULD_WAIT, "evict": What.WOULD_KEEP}
"""Effects that the baseline had and the observed policy would not have had."""
NOT_AHEAD: dict[TurnAnswer, str] = {
    "running": "that is under way already",
    "done": "all of it was read already",
    "busy": "replies are being made, or another session's turn is read ahead",
    "nothing": "no item was added since the last reply",
}
"""Why an advisory of a turn begins no preparation."""
STOPS_OWN = ItemCut, ItemRemoved, SessionClosed
"""Facts of a session that end its preparation; that a reply is asked for ends anybody's."""
NOT_WHOLE = "until a reply was asked for, the conversation changed, or another session's turn was read ahead"
REDONE = "a step that it was in, or a copy that it waited for, failed"


@dataclass(slots=True)
class _Work:
    """What one unit does for one response."""

    now: Turn
    since: float
    spent: dict[Turn, float] = field(default_factory=dict[Turn, float])
    queued: dict[Turn, float] = field(default_factory=dict[Turn, float])
    """`spent` when it last had to queue."""
    has_row: bool = False
    was_held: bool = False

    def turn(self, to: Turn, now: float) -> None:
        self.spent[self.now] = self.spent.get(self.now, 0.0) + now - self.since
        self.now, self.since = to, now

    def waits(self, before: dict[Turn, float]) -> Spent:
        """Since then, by cause and reason."""
        found = {
            (cause, reason): s - before.get((cause, reason), 0.0)
            for (cause, reason), s in self.spent.items()
            if cause is not None
        }
        return {key: s for key, s in found.items() if s > 0.0}


@dataclass(slots=True)
class _Reply:
    """A response, open or over."""

    story: Story
    name: str
    item: str
    asked_at: float
    is_transcript: bool = False
    """It writes down what was said: nobody hears it."""
    playback: Playback = field(default_factory=Playback)
    has_text: bool = False
    is_cut: bool = False
    """Its client has stopped playing it."""
    kept: int | None = None
    """Of its tokens, where it was cut."""
    withheld_s: float | None = None
    """Seconds of audio that are kept from the client; None: none is."""
    sounded_s: float = 0.0
    """Seconds of audio that came of it, those that are withheld too."""
    made_s: float | None = None
    """Seconds of audio that its frames amount to, or that came of a voice without frames; None: it is still
    being made."""
    works: dict[str, _Work] = field(default_factory=dict[str, _Work])

    def add(self, now: float, what: What, where: str = "", **told: Any) -> None:
        """One more event of its session's story, of this response."""
        self.story.add(now, what, where, self.name, **told)


@dataclass(slots=True)
class _Copy:
    """Blocks on their way from the host, with a ticket for each KV group."""

    story: Story
    unit: str
    num_blocks: int
    tickets: set[int]
    is_preload: bool
    has_failed: bool = False
    """One of them broke off: the others bring nothing of use."""


@dataclass(slots=True)
class _Ahead:
    """The preparation that runs, since when, and how many tokens those before it had read."""

    session: str
    since: float
    num_before: float


class Storyteller:
    """Implements `node.Observer`. Owner of the stories of all sessions, or of `only` one."""

    def __init__(self, config: NodeConfig, depth: int, only: str | None = None) -> None:
        self.stories: dict[str, Story] = {}
        self.sessions: dict[str, None] = {}
        """Names of all sessions in the record."""
        self._only = only
        self._now = 0.0
        self._replies: dict[str, dict[str, _Reply]] = {}
        """By session and response."""
        self._waits = Waits()
        self.node = Node(config, depth, observer=self)
        self._copies: dict[int, _Copy] = {}
        self._preloads = PreloadStories(self.stories, self.node.stages)
        self._ahead: _Ahead | None = None

    def decide(self, facts: tuple[Fact, ...], now: float) -> Decision:
        """As the node decides."""
        self._now = now
        for fact in facts:
            self._waits.observe(fact)
            self._happened(fact)
        decision = self.node.decide(facts, now)
        self._waits.planned(decision.orders, self.node.stages)
        self._preloads.planned(now)
        self._prepared(facts, decision)
        for output in decision.outputs:
            if isinstance(output, AdvisoryAnswered):
                self._advised(output)
                continue
            if isinstance(output, WordsHeard):  # the person is shown them, and nothing follows
                continue
            reply = self._find(output.session, output.response)
            if reply is not None:
                self._out(reply, output)
        for step in (order for order in decision.orders if isinstance(order, ArStep)):
            for join in step.joins:
                reply = self._of_request(join.request)
                if reply is not None:
                    self._has_row(reply, step.stage, join)
        for response in self.node.responses.values():
            reply = self._find(response.session, response.spec.response)
            if reply is not None:
                self._look(reply, response)
        return decision

    def finish(self) -> None:
        """The record is over."""
        for story in self.stories.values():
            for reply in self._replies_of(story):
                if reply.made_s is None:
                    self._worked(reply)
                    reply.add(self._now, What.UNFINISHED)

    def _find(self, session: str, response: str) -> _Reply | None:
        return self._replies.get(session, {}).get(response)

    def _of_request(self, request: int) -> _Reply | None:
        """Of one that is open."""
        response = self.node.responses.get(request)
        return None if response is None else self._find(response.session, response.spec.response)

    def _replies_of(self, story: Story) -> list[_Reply]:
        return list(self._replies[story.session].values())

    # -- the node's observer -------------------------------------------------------------------------

    def said(self, asked: Watched, view: Any, answer: Any, now: float) -> None:
        """A policy has answered."""
        self._waits.said(asked.decision, asked.unit, view, answer)
        if asked.decision == "fetch":
            self._preloads.said(asked, view, now)

    def differed(self, unit: str, would: Effects, did: Effects, reason: str) -> None:
        """A policy that is observed has answered otherwise than the baseline."""
        for kinds, effects in ((WOULD, would), (WOULD_NOT, did)):
            for done, target in effects:
                reply = self._of_request(target) if isinstance(target, int) else None
                told = reply or self.stories.get(str(target))
                if told is not None and done in kinds:
                    told.add(self._now, kinds[done], unit, reason=reason)

    def moved(self, moved: KvMoved) -> None:
        """Blocks of a session's KV go somewhere. What rests under another name than the session's is not its
        past, and was not preloaded for its turn."""
        story = self.stories.get(moved.session)
        if story is None:
            return
        unit, num_blocks = moved.unit, moved.num_blocks
        told = moved.told or Told("", self._waits.because(moved.move, unit))
        what = What[moved.move.name]
        story.add(self._now, what, unit, reason=told.why, kind=told.label, blocks=num_blocks)
        copy = _Copy(story, unit, num_blocks, {*moved.tickets}, moved.move is KvMove.PRELOADED)
        self._copies.update(dict.fromkeys(moved.tickets, copy))
        self._preloads.moved(moved, self._now)

    # -- what happened -------------------------------------------------------------------------------

    def _happened(self, fact: Fact) -> None:
        """Before the node hears of it."""
        self._preloads.observe(fact, self._now)
        match fact:
            case CopyDone() | CopyFailed():
                self._copied(fact)
            case PromptReady():
                self._rendered(fact)
            case SessionOpened():
                self.sessions[fact.session] = None
                if self._only in (None, fact.session):
                    self.stories[fact.session] = Story(fact.session, self._now)
                    self._replies[fact.session] = {}
            case _:
                story = self.stories.get(getattr(fact, "session", ""))
                if story is not None:
                    self._of_person(story, fact)

    def _of_person(self, story: Story, fact: Fact) -> None:
        now, reply = self._now, self._find(story.session, getattr(fact, "response", ""))
        match fact:
            case SpeechStarted():
                replies = [one for one in self._replies_of(story) if not one.is_transcript]
                heard = [one for one in replies if one.playback.is_audible(now) or one.made_s is None]
                if heard:
                    heard[-1].add(now, What.SPEAKS_OVER, left_s=heard[-1].playback.lead_s(now))
                else:
                    story.add(now, What.SPEAKS)
            case SpeechEnded():
                story.add(now, What.SILENT)
            case ItemAdded() if fact.item.role == "user":
                kinds = (type(part).__name__.removesuffix("Part").lower() for part in fact.item.parts)
                story.add(now, What.SAID, reason=", ".join(kinds))
            case ResponseRequested() if reply is None:
                reply = _Reply(story, fact.response, fact.item_id, now, fact.transcribe)
                self._replies[story.session][fact.response] = reply
                reply.add(now, What.TRANSCRIBED if fact.transcribe else What.ASKED)
            case TurnForeseen():
                story.add(now, What.PAUSES if fact.item.id else What.BEGINS)
            case TurnDropped():
                story.add(now, What.CLEARED)
            case TurnAdvised():
                told = [] if isnan(fact.expected_s) else [f"due in {fact.expected_s:.1f} s"]
                if not fact.is_likely:
                    told.append(f"nothing is done: its confidence is below {LIKELY:g}")
                story.add(now, What.ADVISED, reason="; ".join(told))
            case SessionClosed():
                for one in self._replies_of(story):
                    if one.made_s is None:
                        self._stop(one, "the session is closed", None)
                story.add(now, What.CLOSED)
            case ItemCut():
                for one in self._replies_of(story):
                    if one.item == fact.item_id:
                        self._stop(one, "", fact.num_tokens)
            case PlaybackReported() if reply is not None:
                reply.playback.acked(fact.played_s, now)
            case OutputHeld() if reply is not None:
                reply.withheld_s = reply.withheld_s or 0.0
                reply.add(now, What.WITHHELD)
            case OutputReleased() if reply is not None:
                reply.add(now, What.RELEASED)
                withheld_s, reply.withheld_s = reply.withheld_s, None
                if withheld_s:
                    self._audible(reply, withheld_s)
            case ResponseCancelled() if reply is not None:
                self._stop(reply, fact.reason, fact.keep_tokens)
            case _:
                pass

    def _rendered(self, fact: PromptReady) -> None:
        reply = self._of_request(fact.request)
        if reply is not None:
            prompt = fact.prompts.get(self.node.stages.entry_stage)
            tokens = 0 if prompt is None else len(prompt.token_ids)
            reply.add(self._now, What.RENDERED, tokens=tokens, took_s=self._now - reply.asked_at)

    def _copied(self, fact: CopyDone | CopyFailed) -> None:
        copy = self._copies.pop(fact.ticket, None)
        if copy is None:
            return
        copy.tickets.discard(fact.ticket)
        blocks = copy.num_blocks
        if copy.has_failed:
            return
        if isinstance(fact, CopyFailed):
            copy.has_failed = True
            copy.story.add(self._now, What.COPY_FAILED, copy.unit, reason=fact.message, blocks=blocks)
            if copy.is_preload:
                self._preloads.broke(copy.unit, copy.story.session, blocks, self._now)
        elif not copy.tickets:
            copy.story.add(self._now, What.ARRIVED, copy.unit, blocks=blocks)

    # -- what is read ahead of a turn ----------------------------------------------------------------

    def _advised(self, output: AdvisoryAnswered) -> None:
        story = self.stories.get(output.session)
        if output.turn == "begun":
            self._ahead = _Ahead(output.session, self._now, self._num_read_ahead())
        if story is not None and output.turn:
            reason = NOT_AHEAD.get(output.turn, "")
            story.add(self._now, What.NOT_AHEAD if reason else What.READS_AHEAD, reason=reason)

    def _prepared(self, facts: tuple[Fact, ...], decision: Decision) -> None:
        """Tell of a preparation that has ended with these facts, or gave way to another."""
        ahead = self._ahead
        if ahead is None:
            return
        tokens = self._num_read_ahead() - ahead.num_before
        is_stopped = any(
            isinstance(fact, ResponseRequested)
            or (isinstance(fact, STOPS_OWN) and fact.session == ahead.session)
            for fact in facts
        ) or any(isinstance(one, AdvisoryAnswered) and one.turn == "begun" for one in decision.outputs)
        if not tokens and not is_stopped:
            return
        self._ahead, story = None, self.stories.get(ahead.session)
        if story is not None:
            reason, took_s = NOT_WHOLE if is_stopped else "", self._now - ahead.since
            story.add(self._now, What.READ_AHEAD, reason=reason, tokens=tokens, took_s=took_s)

    def _num_read_ahead(self) -> float:
        """Tokens that all preparations have read which are over."""
        stats, units = self.node.stats(), self.node.stages.ar
        return sum(stats.get(Metric.PREPARED_TOKENS.of(unit), 0.0) for unit in units)

    # -- what came of it -----------------------------------------------------------------------------

    def _out(self, reply: _Reply, output: ResponseOutput) -> None:
        match output:
            case TokensOut():
                if not reply.has_text:
                    reply.has_text = True
                    self._first(reply, What.FIRST_WORDS if reply.is_transcript else What.FIRST_TEXT)
            case AudioOut():
                audio_s = len(output.audio) * SECONDS_PER_BYTE
                reply.sounded_s += audio_s
                if reply.withheld_s is None:
                    self._audible(reply, audio_s)
                else:
                    reply.withheld_s += audio_s
            case ResponseEnded():
                self._ended(reply, output)

    def _audible(self, reply: _Reply, audio_s: float) -> None:
        """So much audio goes to the client."""
        if reply.playback.first_at is None:
            self._first(reply, What.FIRST_AUDIO)
        gap_s = reply.playback.add(audio_s, self._now)
        if gap_s:
            reply.add(self._now, What.GAP, gap_s=gap_s)

    def _first(self, reply: _Reply, what: What) -> None:
        reply.add(self._now, what, after_s=self._now - reply.asked_at)

    def _ended(self, reply: _Reply, output: ResponseEnded) -> None:
        usage, now = output.usage, self._now
        self._worked(reply)
        made_s = reply.made_s = usage.output_audio_tokens * self.node.frontier.frame_s or reply.sounded_s
        if not reply.is_transcript and (output.status == "cancelled" or reply.is_cut):
            reply.playback.stop(now)
            self._cut(reply, output.reason)
        said = [one for one in (output.status, output.reason, output.message) if one]
        text = usage.output_text_tokens
        reply.add(now, What.ENDED, reason=": ".join(said), text=text, made_s=made_s)

    def _stop(self, reply: _Reply, reason: str, keep_tokens: int | None) -> None:
        """The client plays no more of it. Of one that is being made, its end says what was never heard."""
        was_audible, reply.is_cut = reply.playback.is_audible(self._now), True
        reply.playback.stop(self._now)
        if reply.made_s is not None and was_audible:
            self._cut(reply, reason)
        if keep_tokens is not None and keep_tokens != reply.kept:
            reply.kept = keep_tokens
            reply.add(self._now, What.KEPT, reason=reason, kept=keep_tokens)

    def _cut(self, reply: _Reply, reason: str) -> None:
        made_s, heard_s = reply.made_s or 0.0, reply.playback.played_s(self._now)
        unheard_s = max(made_s - heard_s, 0.0)
        reply.add(self._now, What.CUT, reason=reason, heard_s=heard_s, made_s=made_s, unheard_s=unheard_s)

    def _worked(self, reply: _Reply) -> None:
        """What its units spent their time on."""
        for unit, work in reply.works.items():
            work.turn(OVER, self._now)
            ran_s = work.spent.get(RUNS, 0.0)
            reply.add(self._now, What.WORKED, unit, spent=work.waits({}), ran_s=ran_s)

    # -- rows and waits ------------------------------------------------------------------------------

    def _has_row(self, reply: _Reply, unit: str, join: Join) -> None:
        story, now = reply.story, self._now
        work = reply.works.setdefault(unit, _Work(OVER, now))
        if work.has_row:
            self._preempted(reply, unit, join.request, work)
        work.turn(RUNS, now)
        work.has_row = True
        active = self.node.stages.ar[unit].find(join.request)
        reads_past = active is not None and active.owner == story.session
        preloaded = self._preloads.read(unit, story.session) if reads_past else None
        if preloaded is not None:
            num_blocks, since = preloaded
            if since <= reply.asked_at:
                ahead_s = reply.asked_at - since
                reply.add(now, What.PRELOAD_USED, unit, blocks=num_blocks, ahead_s=ahead_s)
            else:  # while the request waited for a row
                late_s = since - reply.asked_at
                reply.add(now, What.PRELOAD_USED_LATE, unit, blocks=num_blocks, late_s=late_s)
        waits, tokens = work.waits(work.queued), len(join.prompt.token_ids) + len(join.generated)
        waited_s, cached = sum(waits.values()), join.cached
        reply.add(now, What.JOINED, unit, spent=waits, waited_s=waited_s, cached=cached, tokens=tokens)

    def _preempted(self, reply: _Reply, unit: str, request: int, work: _Work) -> None:
        keeps, reason = self._waits.preempted(unit, request) or (False, REDONE)
        what = What.PREEMPTED_KEEPING if keeps else What.PREEMPTED
        reply.add(self._now, what, unit, reason=reason)
        work.turn(OVER, self._now)
        work.has_row, work.queued = False, work.spent.copy()

    def _look(self, reply: _Reply, response: ResponseState) -> None:
        """What each of its units does for it until the next call."""
        owing = response.owing
        for unit in reply.works.keys() - owing:
            reply.works[unit].turn(OVER, self._now)
            reply.works[unit].has_row = False
        for unit in (one.name for one in self.node.stages.all if one.name in owing):
            work = reply.works.setdefault(unit, _Work(OVER, self._now))
            scheduler = self.node.stages.find(unit)
            if isinstance(scheduler, ArScheduler):
                active = scheduler.find(response.request)
                if work.has_row and active is not None and active.row is None:
                    self._preempted(reply, unit, response.request, work)
            turn = self._waits.turn(scheduler, response, self.node.stages.is_entry(unit))
            if turn != work.now:
                work.turn(turn, self._now)
            if turn[0] is Cause.HELD and not work.was_held:
                work.was_held = True
                reply.add(self._now, What.HELD, unit, reason=turn[1])
