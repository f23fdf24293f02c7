"""A node over the toy model in virtual time, watched by every law that a client could notice broken."""

from __future__ import annotations

from collections import deque
from functools import cache
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from antiphon.assembly.node import Node
from antiphon.assembly.preset import read_preset
from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, NodeConfig, PolicyChoice, Unit
from antiphon.core.conversation import Item
from antiphon.core.facts import (
    Fact,
    PromptReady,
    ResponseRequested,
    SessionClosed,
    SessionOpened,
    StagePrompt,
    UnitLost,
    UnitReady,
)
from antiphon.core.plans import (
    AdvisoryAnswered,
    AudioOut,
    CopyBlocks,
    Decision,
    DropMedia,
    DropPayload,
    Handoff,
    MoveBlocks,
    Order,
    Output,
    RenderPrompt,
    ResponseEnded,
    SendMedia,
    TokensOut,
    WordsHeard,
)
from antiphon.core.sampling import Sampling
from antiphon.flow.response import ResponseState
from antiphon.stage.ar import ArScheduler
from antiphon.stage.encode import EncodeScheduler
from antiphon.stage.requests import salted_keys
from fakes import toy
from fakes.executors import FakeEncoder, FakeTalker, FakeThinker
from fakes.fleet import Fleet
from fakes.resting import check_resting

STEP_S = 0.01
CHECKED_EVERY = 29
"""Turns after which it is looked at whether what the node leaves unasked would have done something."""
HURRIED = str(Path(__file__).with_name("hurried.yaml"))
READERS = str(Path(__file__).with_name("readers.yaml"))
TURNS_A_RESPONSE = 1000
"""Generous: a full KV pool in steps of one token, in two stages, on a device that lags."""


class Recorder(Protocol):
    has_stopped: bool

    def write(self, now: float, facts: list[Fact], decision: Decision) -> None: ...


def toy_config(
    *,
    rows: int = 2,
    blocks: int = 24,
    step_tokens: int = 8,
    media: int = 2,
    speaks: bool = True,
    context: int | None = None,
    layer_groups: tuple[tuple[str, int, int], ...] = (),
    units: tuple[Unit, ...] = (),
    host_blocks: int = 0,
    preset: str = "baseline",
) -> NodeConfig:
    """Tiny pools, so that everything that can run out does."""
    sizes = {
        "max_rows": rows,
        "block_size": 4,
        "num_blocks": blocks,
        "step_tokens": step_tokens,
        "layer_groups": layer_groups,
        "host_blocks": host_blocks,
    }
    thinker = ArConfig(
        **sizes, stop_ids=(toy.STOP,), sampling=Sampling(max_tokens=12), max_context_tokens=context
    )
    ar = {"thinker": thinker}
    if speaks:
        talker = Sampling(max_tokens=16)
        ar["talker"] = ArConfig(**sizes, stop_ids=(toy.CODEC_STOP,), width=toy.WIDTH, sampling=talker)
    return NodeConfig(
        graph="qwen3_omni_moe",
        ar=ar,
        codec={"code2wav": CodecConfig(rows)} if speaks else {},
        encoder={"encoders": EncoderConfig(step_media=media, cached_media=media)},
        end_inputs={"talker": toy.END_INPUT},
        call_ids=(toy.CALL,),
        units=units,
        preset=preset,
        policies=_policies(preset) if preset in (HURRIED, READERS) else {},
    )


@cache
def _policies(preset: str) -> dict[str, PolicyChoice]:
    """Read once, for thousands of worlds."""
    return read_preset(preset)


class Heard:
    """All that came of one response."""

    def __init__(self, spec: ResponseRequested) -> None:
        self.spec = spec
        self.prompts: dict[str, StagePrompt] = {}
        self.text: list[int] = []
        self.frames: list[tuple[int, ...]] = []
        self.audio = b""
        self.end: ResponseEnded | None = None

    def take(self, output: Output) -> None:
        assert self.end is None, "an output after the end of its response"
        match output:
            case TokensOut() if output.stage == "thinker":
                self.text += output.tokens[:, 0].tolist()
            case TokensOut():
                self.frames += [tuple(frame) for frame in output.tokens.tolist()]
            case AudioOut():
                assert output.audio, "silence is not sent"
                self.audio += output.audio
            case ResponseEnded():
                self.end = output


class World:
    """Node, fakes and clock. `turn` is one round of a driver: observe, decide, execute."""

    def __init__(
        self,
        config: NodeConfig,
        depth: int = 0,
        recorder: Recorder | None = None,
        lags: bool = False,
        copy_lag: int = 0,
    ) -> None:
        self.is_lenient = False
        """Policies may be wrong."""
        self.config = config
        self.node = Node(config, depth)
        self.fleet = Fleet(config, depth, lags)
        self.device = next(iter(self.fleet.devices.values()))
        self.now = 0.0
        self._num_turns = 0
        self.responses: dict[tuple[str, str], Heard] = {}
        self.advised: list[AdvisoryAnswered] = []
        self.mover = self.fleet.mover
        self.mover.lag = copy_lag
        self._prompter = toy.ToyPrompter()
        self._recorder = recorder
        self._facts: list[Fact] = []
        self._wake_at: float | None = None
        """When the node wishes to be asked again, if nothing happens before."""
        self._open: set[str] = set()
        self._unrendered: deque[Heard] = deque()
        self._rendered: dict[int, Heard] = {}
        self._ahead: set[int] = set()
        """Requests of which no reply is made."""
        self._note_ahead()

    @property
    def entry(self) -> ArScheduler:
        """Who schedules the first unit that writes."""
        return next(iter(self.node.stages.ar.values()))

    @property
    def encode(self) -> EncodeScheduler:
        """Who schedules the first encoder."""
        return next(iter(self.node.stages.encoders.values()))

    @property
    def thinker(self) -> FakeThinker:
        """The first one."""
        return next(one for one in self.fleet.executors.values() if isinstance(one, FakeThinker))

    @property
    def talker(self) -> FakeTalker:
        """The first one."""
        return next(one for one in self.fleet.executors.values() if isinstance(one, FakeTalker))

    @property
    def encoder(self) -> FakeEncoder:
        """The first one."""
        return next(one for one in self.fleet.executors.values() if isinstance(one, FakeEncoder))

    def send(self, *facts: Fact) -> None:
        """Facts for the next turn."""
        for fact in facts:
            match fact:
                case SessionOpened():
                    self._open.add(fact.session)
                case SessionClosed():
                    self._open.discard(fact.session)
                case ResponseRequested():
                    heard = self.responses[fact.session, fact.response] = Heard(fact)
                    if fact.session in self._open:
                        self._unrendered.append(heard)
                case _:
                    pass
        self._facts += facts

    def turn(self) -> bool:
        """True while there is more to do."""
        facts, self._facts = self._facts, []
        self.now = max(self.now + STEP_S, self._wake_at or 0.0)
        self._wake_at = None
        decision = self.node.decide(facts, self.now)
        self.node.check_integrity()
        self._num_turns += 1
        if self._num_turns % CHECKED_EVERY == 0:
            check_resting(self.node, self.now)
        assert self.is_lenient or not self.node.guard.counts, self.node.guard.incidents()
        if self._recorder is not None:
            self._recorder.write(self.now, facts, decision)
        for output in decision.outputs:
            if isinstance(output, AdvisoryAnswered):
                self.advised.append(output)
                continue
            assert not isinstance(output, WordsHeard), "no transcriber is there"
            self.responses[output.session, output.response].take(output)
        before = {place: device.num_in_flight for place, device in self.fleet.devices.items()}
        for order in decision.orders:
            self._execute(order)
        assert self.fleet.num_in_flight == self.node.num_in_flight
        assert all(device.num_in_flight <= device.depth + 1 for device in self.fleet.devices.values())
        self.fleet.report(before)
        self._facts += self.fleet.poll()
        goes_on = decision.orders or self._facts or any(before.values()) or self.mover.num_in_flight
        if not goes_on and any(heard.end is None for heard in self.responses.values()):
            self._wake_at = decision.wake_at
        return bool(goes_on or self._wake_at is not None)

    def kill(self, process: str) -> None:
        """The process dies now; its units come again with the turn after the one that hears of it."""
        units = self.fleet.kill(process)
        self._facts = [fact for fact in self._facts if not _is_from(fact, units)]
        self.send(*(UnitLost(unit, "killed") for unit in units))
        self.turn()
        self.fleet.dead = ""
        self.send(*(UnitReady(unit) for unit in units))

    def run(self) -> None:
        """Until nothing is left to do; then every response must have ended."""
        num_open = sum(heard.end is None for heard in self.responses.values())
        for _ in range(TURNS_A_RESPONSE * (num_open + 1)):
            if not self.turn():
                break
        else:
            raise AssertionError("it never comes to rest")
        silent = [key for key, heard in self.responses.items() if heard.end is None]
        assert not silent, f"never ended: {silent}"

    def check(self, heard: Heard) -> None:
        """What came is what the undisturbed model says, as far as the response got."""
        assert heard.end is not None
        if not heard.prompts:
            assert not heard.text
            assert heard.end.status in ("failed", "cancelled")
            return
        prompts = heard.prompts
        if (
            salt := heard.spec.cache_salt
        ):  # to the toy keys are what a prompt says: of another salt KV differs
            prompts = {
                stage: replace(one, keys=salted_keys(salt, one.keys)) for stage, one in prompts.items()
            }
        wanted = toy.answer(prompts, heard.spec, self.config)
        usage = heard.end.usage
        assert usage.output_text_tokens == len(heard.text)
        if heard.end.status in ("completed", "incomplete"):
            assert heard.text == wanted.text
            assert heard.audio == wanted.audio
            assert heard.frames == (wanted.frames if heard.spec.codes else [])
            assert heard.end.status == ("incomplete" if wanted.cut else "completed")
            assert usage.output_audio_tokens == len(wanted.frames)
        assert wanted.text[: len(heard.text)] == heard.text
        assert wanted.audio[: len(heard.audio)] == heard.audio

    def check_empty(self) -> None:
        """Every session is closed and nothing runs: nothing may be held. What is left as cache is free."""
        stages = self.node.stages
        for ar in stages.ar.values():
            assert ar.kv.blocks.num_free == ar.kv.num_blocks
            assert ar.tiers.host.num_free == ar.tiers.host.num_blocks
            assert not ar.tiers.num_in_flight
            assert not ar.leases
            assert not ar.requests
        assert not any(codec.requests for codec in stages.codec.values())
        talkers = [one for one in self.fleet.executors.values() if isinstance(one, FakeTalker)]
        assert not any(talker.payloads for talker in talkers)
        for encoder in stages.encoders.values():
            assert not encoder.pins
            assert not encoder.num_running
        most = self.config.encoder["encoders"].cached_media * len(stages.encoders)
        assert all(len(features) <= most for features in self.fleet.features.values())

    def _note_ahead(self) -> None:
        sessions = self.node._orchestrator._sessions
        begin = sessions.begin_ahead

        def noted(spec: ResponseRequested, items: tuple[Item, ...]) -> ResponseState:
            begun = begin(spec, items)
            self._ahead.add(begun.request)
            return begun

        sessions.begin_ahead = noted  # type: ignore[method-assign]

    def _execute(self, order: Order) -> None:
        match order:
            case RenderPrompt():
                fact = self._prompter.render(order)
                if order.request in self._ahead:
                    self._facts.append(fact)
                    return
                if order.request not in self._rendered:
                    self._rendered[order.request] = self._unrendered.popleft()
                heard = self._rendered[order.request]
                if isinstance(fact, PromptReady):
                    heard.prompts = fact.prompts
                self._facts.append(fact)
            case Handoff():
                self.fleet.handoff(order)
            case DropPayload():
                self.fleet.drop_payload(order)
            case DropMedia():
                self.fleet.drop_media(order)
            case SendMedia():
                self.fleet.send_media(order)
            case CopyBlocks():
                self.mover.copy(order)
            case MoveBlocks():
                self.fleet.move(order)
            case _:
                self.fleet.submit(order)


def _is_from(fact: Fact, units: list[str]) -> bool:
    """What a unit said that is gone."""
    return getattr(fact, "stage", None) in units or getattr(fact, "unit", None) in units
