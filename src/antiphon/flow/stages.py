"""The schedulers of a node's stages: every unit by name, and which of them a turn runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.core.config import Unit, UnitRole
from antiphon.core.errors import LimitExceeded
from antiphon.core.facts import StagePrompt
from antiphon.core.plans import StagePrepared
from antiphon.policy.base import ReplicaPolicy, ReplicaView
from antiphon.stage.ar import ArScheduler
from antiphon.stage.codec import CodecScheduler
from antiphon.stage.encode import EncodeScheduler

Scheduler = ArScheduler | CodecScheduler | EncodeScheduler


class SessionAffinity:
    """Which replica served a conversation last, and so has its KV. Owner of one unit per session and part of
    the pipeline, and of how many sessions a unit is home to."""

    def __init__(self) -> None:
        self._units: dict[str, dict[str, str]] = {}
        self._counts: Counter[str] = Counter()

    def find(self, session: str, stage: str) -> str | None:
        return self._units.get(session, {}).get(stage)

    def count(self, unit: str) -> int:
        """Sessions at home there."""
        return self._counts[unit]

    def move(self, session: str, stage: str, unit: str) -> str | None:
        """The session is served there from now on; returns the unit it leaves, if it was elsewhere."""
        units = self._units.setdefault(session, {})
        before = units.get(stage)
        if before == unit:
            return None
        if before is not None:
            self._counts[before] -= 1
        units[stage] = unit
        self._counts[unit] += 1
        return before

    def forget(self, session: str) -> None:
        self._counts.subtract(self._units.pop(session, {}).values())

    def lose(self, unit: str) -> None:
        """The unit is gone: no session is at home there."""
        for units in self._units.values():
            for stage in [stage for stage, home in units.items() if home == unit]:
                del units[stage]
        del self._counts[unit]


@dataclass(slots=True)
class Path:
    """The units that a turn runs on, by name; those that speak are chosen once there is something to say.

    entry   the unit that has the request which writes the reply
    vocoder  the unit that turns frames into sound; "": the talker does
    reader  the one that read the prompt, once another one writes
    """

    encode: str
    entry: str
    talker: str = ""
    vocoder: str = ""
    reader: str = ""


class Stages:
    """Owner of every unit's scheduler, and of which units are there.

    encoders, ar, codec: by unit, in pipeline order. The first decoder that does not transcribe is a unit of
    the entry stage (it writes the reply's text); decoders of the other stage, where there is one, speak it.
    Without them codecs do, if there are any.
    """

    def __init__(
        self,
        units: tuple[Unit, ...],
        make: Callable[[Unit], Scheduler],
        policy: ReplicaPolicy,
        transcriber: str | None = None,
    ) -> None:
        """transcriber: the stage that writes down what is said, where one does."""
        self.transcriber_stage = transcriber
        self.units = {unit.name: unit for unit in units}
        self.encoders: dict[str, EncodeScheduler] = {}
        self.ar: dict[str, ArScheduler] = {}
        self.codec: dict[str, CodecScheduler] = {}
        self.lost: set[str] = set()
        self._make = make
        self._policy = policy
        self._affinity = SessionAffinity()
        self._all: dict[str, Scheduler] = {}
        for unit in units:
            self._renew(unit)
        stages = list(dict.fromkeys(self.units[name].stage for name in self.ar))
        replying = [stage for stage in stages if stage != transcriber]
        self.entry_stage = replying[0]
        self.talker_stage = replying[1] if len(replying) > 1 else None
        """None where no decoder speaks."""

    @property
    def has_voice(self) -> bool:
        """Does the model speak?"""
        return self.talker_stage is not None or bool(self.codec)

    @property
    def all(self) -> tuple[Scheduler, ...]:
        """In pipeline order."""
        return tuple(self._all.values())

    def find(self, unit: str) -> Scheduler:
        return self._all[unit]

    def stage_of(self, unit: str) -> str:
        """The graph's name of a unit's stage."""
        return self.units[unit].stage

    def is_entry(self, unit: str) -> bool:
        return self.units[unit].stage == self.entry_stage

    def is_local(self, source: str, target: str) -> bool:
        """Do both units live in one process?"""
        return self.units[source].process == self.units[target].process

    # -- what serves a turn --------------------------------------------------------------------------
    # `settles`: the session is at home there from now on. Responses beside the conversation do not move it.

    def begin(self, session: str, now: float, settles: bool) -> Path | None:
        """The units that read a turn; None while there are none."""
        return self._path(self._choose(session, self.entry_stage, now, settles))

    def _path(self, reader: str | None) -> Path | None:
        encode = None if reader is None else self.encoder_of(reader)
        return None if reader is None or encode is None else Path(encode, reader)

    def encoder_of(self, reader: str) -> str | None:
        """The encoder that serves a unit; None while there is none."""
        return self._beside(reader, self.encoders)

    def hands_on(self, unit: str) -> bool:
        """Does another unit write what this one begins?"""
        return self.units[unit].role == "prefill"

    def write(self, session: str, now: float, settles: bool) -> str | None:
        """The unit that goes on with a reply which a prefill unit began; None while there is none."""
        return self._choose(session, self.entry_stage, now, settles, "decode")

    def transcribe(self, session: str, now: float) -> Path | None:
        """The units that write down a recording; None while there are none."""
        assert self.transcriber_stage is not None
        return self._path(self._choose(session, self.transcriber_stage, now, settles=False))

    def speak(self, path: Path, session: str, now: float, settles: bool) -> bool:
        """Choose the units that speak a turn; False while there are none."""
        if self.talker_stage is None:
            path.vocoder = self._beside(path.entry, self.codec) or ""
            return bool(path.vocoder)
        talker = self._choose(session, self.talker_stage, now, settles)
        vocoder = None if talker is None else self._beside(talker, self.codec)
        if talker is None or (vocoder is None and self.codec):
            return False
        path.talker, path.vocoder = talker, vocoder or ""
        return True

    def _choose(
        self, session: str, stage: str, now: float, settles: bool, role: UnitRole = "prefill"
    ) -> str | None:
        units = (self.units[name] for name in self.ar if name not in self.lost)
        names = [unit.name for unit in units if unit.stage == stage and unit.role in (role, "both")]
        if not names:
            return None
        place = f"{stage} {role}"
        home = self._affinity.find(session, place)
        view = ReplicaView(
            tuple(len(self.ar[name].requests) for name in names),
            tuple(self._affinity.count(name) for name in names),
            names.index(home) if home in names else None,
        )
        chosen = names[self._policy.decide(view, now)]
        if settles:
            left = self._affinity.move(session, place, chosen)
            if left is not None:
                self.ar[left].forget(session)
        return chosen

    def _beside(
        self, unit: str, others: dict[str, EncodeScheduler] | dict[str, CodecScheduler]
    ) -> str | None:
        """The one on the same device, else in the same process, else that with the fewest requests."""
        here = self.units[unit]

        def distance(name: str) -> tuple[bool, bool, int]:
            there = self.units[name]
            return (there.device != here.device, there.process != here.process, others[name].num_requests)

        return min((name for name in others if name not in self.lost), key=distance, default=None)

    # -- units come and go ---------------------------------------------------------------------------

    def lose(self, unit: str) -> None:
        """Its process is gone: what its scheduler knew is void, and no request is sent there."""
        self.lost.add(unit)
        self._affinity.lose(unit)
        self._renew(self.units[unit])

    def regain(self, unit: str) -> None:
        self.lost.discard(unit)

    def _renew(self, unit: Unit) -> None:
        scheduler, before = self._make(unit), self._all.get(unit.name)
        self._all[unit.name] = scheduler
        if before is not None:
            scheduler.num_changes = before.state[0] + 1
        match scheduler:
            case EncodeScheduler():
                self.encoders[unit.name] = scheduler
            case ArScheduler():
                self.ar[unit.name] = scheduler
            case CodecScheduler():
                self.codec[unit.name] = scheduler

    # -- all of them ---------------------------------------------------------------------------------

    def excess(self, path: Path, prompts: dict[str, StagePrompt], share: float) -> LimitExceeded | None:
        """What of the prompts does not fit into this share of the context; None if all does."""
        try:
            for stage, prompt in prompts.items():
                unit = path.entry if stage == self.entry_stage else self._any(stage)
                self.ar[unit].check(prompt, share)
        except LimitExceeded as error:
            return error
        return None

    def _any(self, stage: str) -> str:
        return next(name for name in self.ar if self.stage_of(name) == stage)

    def abort(self, request: int) -> list[str]:
        """Take a request out of every unit; returns the decoders in which it still was."""
        aborted = {name: scheduler.abort(request) for name, scheduler in self.ar.items()}
        for scheduler in self.codec.values():
            scheduler.abort(request)
        return [name for name, active in aborted.items() if active is not None]

    def forget(self, session: str, as_cache: bool) -> None:
        """Drop a session's idle KV in every unit, or leave it there as cache."""
        self._affinity.forget(session)
        for scheduler in self.ar.values():
            scheduler.forget(session, as_cache)

    def prepared(self, session: str) -> tuple[StagePrepared, ...]:
        """What decoder units have of a session's KV; units without any are left out."""
        found = (ar.tiers.prepared(session) for name, ar in self.ar.items() if name not in self.lost)
        return tuple(one for one in found if one is not None)

    def reopen(self) -> None:
        """Everybody's policies are asked again, whatever has changed."""
        for scheduler in self.all:
            scheduler.reopen()

    def check_integrity(self) -> None:
        for scheduler in self.all:
            scheduler.check_integrity()
