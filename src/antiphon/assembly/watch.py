"""What people see of a node: steps as they are decided, and a snapshot of every session with the reasons of
what is decided about it. Costs nothing while nobody watches, and changes nothing when somebody does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import isnan, nan

import msgspec
import numpy as np

from antiphon.assembly.reasons import SILENT, Reasons
from antiphon.core.facts import Fact, Ints, ResponseRequested
from antiphon.core.plans import ArStep, CodecStep, EncodeStep, ResponseEnded, ResponseOutput, Step, Usage
from antiphon.core.playback import Playback
from antiphon.core.snapshot import SessionShown, Snapshot, StageShare, StageShown, StepShown
from antiphon.flow.response import ResponseState
from antiphon.flow.stages import Stages
from antiphon.interaction.frontier import Frontier
from antiphon.interaction.monitor import Monitor
from antiphon.interaction.next_use import NextUseTimes

KEPT_STEPS = 256
"""Steps that one snapshot can show; of more, the last ones."""


class Watch:
    """From the moment somebody looks. Owner of what only people need: steps not shown yet, and ended replies'
    counts."""

    def __init__(
        self,
        stages: Stages,
        people: tuple[Monitor, Frontier, NextUseTimes],
        responses: Mapping[int, ResponseState],
        requests: Mapping[int, ResponseState],
    ) -> None:
        """responses: those that are open; requests: those, and what is done for a session unasked, such as
        writing down what was said."""
        self.reasons = Reasons(stages)
        self._stages = stages
        self._monitor, self._frontier, self._next_use = people
        self._responses, self._requests = responses, requests
        self._steps: deque[StepShown] = deque(maxlen=KEPT_STEPS)
        self._num_steps = 0
        self._ended: dict[str, Usage] = {}
        self._asides: set[tuple[str, str]] = set()
        """Open responses that leave the conversation alone, such as transcriptions."""

    def observe(self, fact: Fact, now: float) -> None:
        """Which responses leave the conversation alone, and what ends a wait."""
        self.reasons.observe(fact, now)
        if isinstance(fact, ResponseRequested) and not fact.remember:
            self._asides.add((fact.session, fact.response))

    def hear(self, output: ResponseOutput) -> None:
        """A reply's last counts stay to be seen while it is still played, whatever else ends meanwhile."""
        if not isinstance(output, ResponseEnded):
            return
        name = (output.session, output.response)
        is_shown = name not in self._asides or output.session not in self._ended
        self._asides.discard(name)
        if is_shown and output.session in self._monitor.sessions:
            self._ended[output.session] = output.usage

    def planned(self, steps: Iterable[Step], now: float) -> None:
        """These steps were decided, and nothing of them has been done yet."""
        for step in steps:
            self._note(step, now)
        self.reasons.planned(steps)

    def _note(self, step: Step, now: float) -> None:
        match step:
            case ArStep():
                unit = self._stages.ar[step.stage]
                named = unit.named_by(step.step)
                for active in (unit.find(join.request) for join in step.joins):
                    if active is not None and active.owner == active.session:
                        self.reasons.joined(step.stage, active.session)
                self._keep(step, now, self._kind(step), len(step.rows), step.counts, self._sessions(named))
            case CodecStep():
                named = tuple(step.requests.tolist())
                kind = "speak" if self._stages.codec[step.stage].reads else "vocode"
                self._keep(step, now, kind, len(step.rows), step.counts, self._sessions(named))
            case EncodeStep():
                ones = np.ones(len(step.media), np.int64)
                self._keep(step, now, "encode", len(step.media), ones, self._users(step))

    def snapshot(self, now: float) -> Snapshot:
        """Everything as it stands; the steps since the last snapshot."""
        self.reasons.keep(self._monitor.sessions)
        self._ended = {name: usage for name, usage in self._ended.items() if name in self._monitor.sessions}
        asides_first = sorted(self._responses.values(), key=lambda response: response.spec.remember)
        open_responses = {response.session: response for response in asides_first}
        held = {name: ar.held for name, ar in self._stages.ar.items()}
        sessions = tuple(
            self._session(name, open_responses.get(name), held, now) for name in self._monitor.sessions
        )
        steps, num_steps = tuple(self._steps), self._num_steps
        self._steps.clear()
        self._num_steps = 0
        return Snapshot(
            now, sessions, self._stages_shown(), steps, num_steps, makers=(*self._decoders, *self._vocoders)
        )

    # -- steps ---------------------------------------------------------------------------------------

    def _keep(
        self, step: Step, now: float, kind: str, rows: int, counts: Ints, sessions: tuple[str, ...]
    ) -> None:
        tokens = int(counts.sum())
        self._num_steps += 1
        self._steps.append(StepShown(step.step, now, step.stage, kind, rows, tokens, step.reason, sessions))

    def _kind(self, step: ArStep) -> str:
        """By what its rows do."""
        prefills = step.starts < self._stages.ar[step.stage].rows.to_compute[step.rows]
        return "prefill" if prefills.all() else "mixed" if prefills.any() else "decode"

    def _sessions(self, requests: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._requests[one].session for one in requests if one in self._requests))

    def _users(self, step: EncodeStep) -> tuple[str, ...]:
        wanted = {part.key for part in step.media}
        users = [r.session for r in self._requests.values() if any(part.key in wanted for part in r.pinned)]
        return tuple(dict.fromkeys(users))

    # -- sessions ------------------------------------------------------------------------------------

    def _session(
        self,
        name: str,
        response: ResponseState | None,
        held: dict[str, dict[str, tuple[int, int]]],
        now: float,
    ) -> SessionShown:
        monitor, reply = self._monitor, self._monitor.heard_reply(name)
        heard = reply or Playback()
        due_s = self._next_use.due_s(name, now) - now
        return SessionShown(
            session=name,
            phase=monitor.phase(name, now).value,
            source=heard.source.name.lower(),
            generated_s=heard.audio_s,
            played_s=heard.played_s(now),
            ttfp_s=None if reply is None else reply.ttfp_s,
            waited_s=monitor.waited_s(name, now),
            is_making=response is not None,
            stages=tuple(
                self._explained(share, place, name, response, now)
                for place, share in enumerate(
                    self._shares(name, response, {stage: kv.get(name) for stage, kv in held.items()})
                )
            ),
            next_use_s=None if isnan(due_s) else due_s,
            is_expected=self._next_use.is_expected(name, now),
            overdue_s=self._next_use.overdue_s(name, now),
        )

    def _explained(
        self, share: StageShare, place: int, name: str, response: ResponseState | None, now: float
    ) -> StageShare:
        """With how far the stage is ahead, what it does now and why. `place`: among those of a reply."""
        units = [unit for unit in self._stages.units if self._stages.stage_of(unit) == share.stage]
        heard = self._monitor.heard(name)
        slot = response.slot if response else self._monitor.slot(name, heard) if heard else None
        lead_s = nan if slot is None else float(self._frontier.leads_s(place, np.array([slot]), now)[0])
        state, told = "", SILENT
        if response is not None:
            for unit in (unit for unit in units if unit in response.owing):
                state, told = self.reasons.of(unit, response)
        moves = (self.reasons.move(unit, name) for unit in units)
        preloads = (self.reasons.preload(unit, name) for unit in units)
        return msgspec.structs.replace(
            share,
            lead_s=None if isnan(lead_s) else lead_s,
            state=state,
            label=told.label,
            why=told.why,
            until=told.until,
            moved=max((one for one in moves if one), key=lambda one: one.at, default=None),
            preload=max((one for one in preloads if one), key=lambda one: one.at, default=None),
        )

    def _shares(
        self, name: str, response: ResponseState | None, held: dict[str, tuple[int, int] | None]
    ) -> list[StageShare]:
        """In pipeline order: text, frames, waveform."""
        text, frames = self._done(name, response)
        shares: list[StageShare] = []
        for stage in self._decoders:
            is_entry = stage == self._stages.entry_stage
            kv_tokens, kv_blocks = self._held(stage, held)
            audio_s = None if is_entry or frames is None else frames * self._frontier.frame_s
            shares.append(StageShare(stage, text if is_entry else frames, audio_s, kv_tokens, kv_blocks))
        heard = self._monitor.heard_reply(name) or Playback()
        return [*shares, *(StageShare(stage, None, heard.audio_s, 0, 0) for stage in self._vocoders)]

    @property
    def _decoders(self) -> tuple[str, ...]:
        """Those that make a reply: the frontier counts no others."""
        stages = dict.fromkeys(map(self._stages.stage_of, self._stages.ar))
        return tuple(stage for stage in stages if stage != self._stages.transcriber_stage)

    @property
    def _vocoders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(map(self._stages.stage_of, self._stages.codec)))

    def _held(self, stage: str, held: dict[str, tuple[int, int] | None]) -> tuple[int, int]:
        """Tokens and blocks of KV that a session has in the units of a stage."""
        found = [kv for unit, kv in held.items() if kv is not None and self._stages.stage_of(unit) == stage]
        return sum(tokens for tokens, _ in found), sum(blocks for _, blocks in found)

    def _done(self, name: str, response: ResponseState | None) -> tuple[int | None, int | None]:
        """Tokens of text and frames of the open reply, or of the one that ended last."""
        if response is not None:
            return len(response.reply), response.num_frames
        usage = self._ended.get(name)
        return (None, None) if usage is None else (usage.output_text_tokens, usage.output_audio_tokens)

    def _stages_shown(self) -> tuple[StageShown, ...]:
        return tuple(
            StageShown(
                name,
                ar.num_running,
                ar.num_waiting,
                ar.kv.num_blocks,
                ar.kv.blocks.num_free,
                ar.kv.blocks.num_idle,
            )
            for name, ar in self._stages.ar.items()
        )
