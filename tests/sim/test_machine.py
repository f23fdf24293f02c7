"""What simulated orders bring and cost: executors, devices, drivers."""

from __future__ import annotations

import itertools
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.assembly.node import Node
from antiphon.assembly.preset import with_preset
from antiphon.core.config import ArConfig, CodecConfig, EncoderConfig, NodeConfig
from antiphon.core.conversation import (
    Item,
    TextPart,
)
from antiphon.core.errors import ConfigError
from antiphon.core.facts import (
    NO_INTS,
    CopyDone,
    Fact,
    ItemAdded,
    ResponseRequested,
    SessionOpened,
    StepDone,
)
from antiphon.core.plans import (
    ArStep,
    CodecStep,
    CopyBlocks,
    Decision,
    Handoff,
    Join,
    Output,
    RenderPrompt,
    Step,
    ints,
)
from antiphon.core.sampling import Sampling
from antiphon.graphs import find_graph
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile, Served, SoundWindow
from antiphon.metrics.log import TextDelta
from antiphon.models.qwen2_5_omni.windows import BLOCKS_AHEAD, next_window
from antiphon.sim import model
from antiphon.sim.devices import BusySpan, Devices
from antiphon.sim.driver import VirtualDriver
from antiphon.sim.events import Agenda
from antiphon.sim.executors import (
    DELAY_SAMPLES,
    FRAME_SAMPLES,
    FRAMES_PER_TOKEN,
    ReplyLengths,
    Talker,
    Vocoder,
    WindowedVocoder,
    Writer,
)
from antiphon.sim.places import Replicas, placed
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.run import Simulation, machine
from antiphon.sim.sizes import Sizes
from sim.linear import LinearCosts
from sim.runs import outcome, setup, started

ENGINE = model.released()
CONFIG = ENGINE.node
QWEN3_OMNI = find_graph("qwen3_omni_moe")


def ar_step(
    stage: str = "thinker", number: int = 0, joins: tuple[Join, ...] = (), **columns: list[int]
) -> ArStep:
    names = ("inputs_rows", "inputs_tokens", "rows", "starts", "counts", "emits")
    return ArStep(
        stage, number, joins, NO_INTS, (), **{name: ints(columns.get(name, [])) for name in names}, reason=""
    )


def waiting_for(ticket: int) -> ArStep:
    return msgspec.structs.replace(ar_step(), waits=(ints([0]), ints([ticket])))


def join(row: int, request: int, length: int, max_tokens: int = 1024) -> Join:
    prompt = (
        SimPrompter(QWEN3_OMNI)
        .render(RenderPrompt(request, (said("word " * length),), False))
        .prompts["thinker"]
    )
    return Join(row, request, prompt, 0, Sampling(max_tokens=max_tokens, seed=request), NO_INTS.reshape(0, 1))


def said(text: str, name: str = "q", role: str = "user") -> Item:
    return Item(name, role, (TextPart(text),))  # type: ignore[arg-type]


def written(max_tokens: int) -> list[int]:
    """What a writer draws for one request until it stops."""
    writer, first = Writer(CONFIG.ar["thinker"]), join(3, 8, 4, max_tokens)
    length = len(first.prompt.token_ids)
    tokens: list[int] = []
    step = ar_step(joins=(first,), rows=[3], starts=[0], counts=[length], emits=[1])
    while len(tokens) < 5000:
        fact = writer.run(step)
        assert isinstance(fact, StepDone)
        assert fact.requests.tolist() == [8]
        tokens.append(int(fact.tokens[0, 0]))
        if tokens[-1] == model.STOP:
            return tokens
        step = ar_step(rows=[3], starts=[length + len(tokens) - 1], counts=[1], emits=[1])
    raise AssertionError("it never stops")


def test_a_reply_is_as_long_as_its_client_allows() -> None:
    tokens = written(max_tokens=20)
    assert len(tokens) == 20
    assert len(set(tokens)) == 20
    assert len(written(max_tokens=2)) == 2


def test_a_reply_that_nobody_limits_has_a_drawn_length() -> None:
    lengths = ReplyLengths(1024)
    drawn = [lengths.of(Sampling(max_tokens=1024, seed=seed)) for seed in range(300)]
    assert drawn == [lengths.of(Sampling(max_tokens=1024, seed=seed)) for seed in range(300)]
    assert 50 < np.median(drawn) < 70
    assert len(written(max_tokens=1024)) == lengths.of(Sampling(max_tokens=1024, seed=8)) + 1


def test_a_prompt_in_chunks_draws_nothing_before_its_end() -> None:
    writer, first = Writer(CONFIG.ar["thinker"]), join(0, 1, 40)
    fact = writer.run(ar_step(joins=(first,), rows=[0], starts=[0], counts=[10], emits=[0]))
    assert isinstance(fact, StepDone)
    assert not len(fact.requests)
    assert not len(fact.tokens)


def test_a_text_is_spoken_in_so_many_frames_a_token() -> None:
    talker, first = Talker(CONFIG.ar["talker"], model.END_INPUT), join(0, 1, 4)
    length, words = len(first.prompt.token_ids), 10
    step = ar_step("talker", joins=(first,), rows=[0], starts=[0], counts=[length], emits=[1])
    frames = 0
    while True:
        fact = talker.run(step)
        assert isinstance(fact, StepDone)
        assert fact.tokens.shape == (1, 16)
        if fact.tokens[0, 0] == model.CODEC_STOP:
            break
        frames += 1
        token = [1 << 20] if frames < words else [model.END_INPUT] if frames == words else []
        step = ar_step(
            "talker",
            rows=[0],
            starts=[length + frames - 1],
            counts=[1],
            emits=[1],
            inputs_rows=[0] * len(token),
            inputs_tokens=token,
        )
    assert frames == round(words * FRAMES_PER_TOKEN)


def test_frames_sound_as_long_as_they_should() -> None:
    frames = np.zeros((6, 16), np.int64)
    step = CodecStep("code2wav", 0, ints([1]), ints([1, 2]), ints([7, 8]), ints([2, 4]), frames, "")
    fact = Vocoder().run(step)
    assert isinstance(fact, StepDone)
    assert fact.samples.tolist() == [2 * FRAME_SAMPLES - DELAY_SAMPLES, 4 * FRAME_SAMPLES]
    assert [len(audio) // 4 for audio in fact.audio] == fact.samples.tolist()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12))
def test_windows_sound_when_token2wavs_do(counts: list[int]) -> None:
    vocoder = WindowedVocoder(480, SoundWindow(12, BLOCKS_AHEAD))
    done = known = 0
    for i, count in enumerate(counts):
        is_last = i == len(counts) - 1
        known += count
        window = next_window(done, known, 12, is_last=is_last)
        sure = 0 if window is None else window.upto - window.done
        done += sure
        frames = np.zeros((count, 1), np.int64)
        joins, ends = ints([5] if i == 0 else []), ints([int(is_last)])
        step = CodecStep(
            "token2wav", i, joins, ints([5]), ints([7]), ints([count]), frames, "", ends, (None,)
        )
        fact = vocoder.run(step)
        assert isinstance(fact, StepDone)
        assert fact.samples.tolist() == [480 * sure]
        assert len(fact.audio[0]) == 4 * 480 * sure
    assert done == known, "all of it, in the end"


# -- devices -----------------------------------------------------------------------------------------


def devices(costs: LinearCosts | None = None) -> Devices:
    return Devices(costs or LinearCosts(), CONFIG.placed, ENGINE.block_bytes, ENGINE.position_bytes)


def test_a_device_runs_one_step_at_a_time_and_others_beside_it() -> None:
    plan = devices(LinearCosts(launch_s=1.0, token_s=0.0, row_s=0.0, speech_s=0.5, frame_s=0.0))
    frames = np.zeros((0, 16), np.int64)
    codec = CodecStep("code2wav", 2, NO_INTS, NO_INTS, NO_INTS, NO_INTS, frames, "")
    assert plan.run(ar_step("thinker"), 0.0).end_s == 1.0
    assert plan.run(ar_step("talker", 1), 0.0).end_s == 1.5
    assert plan.run(codec, 0.25).end_s == 2.5
    assert plan.run(ar_step("thinker", 3), 5.0).end_s == 6.0
    assert plan.busy_s == {"encoders": 0.0, "thinker": 2.0, "talker": 1.5, "code2wav": 1.0}


def test_copies_go_one_after_the_other_and_steps_end_after_those_they_wait_for() -> None:
    costs = LinearCosts(launch_s=0.001, bytes_per_s=1000.0 * ENGINE.block_bytes["thinker", "kv"])
    plan = devices(costs)
    copies = [
        CopyBlocks("thinker", "kv", "device", ints([0] * 500), ints([1] * 500), ticket) for ticket in (0, 1)
    ]
    assert [plan.copy(order, 0.0).end_s for order in copies] == [0.5, 1.0]
    away = CopyBlocks("thinker", "kv", "host", ints([0]), ints([1]), 2)
    assert plan.copy(away, 0.0).end_s == 1.0, "over after a millisecond, and reported behind those before it"
    assert plan.run(waiting_for(2), 0.0).end_s == pytest.approx(0.001)
    assert plan.run(waiting_for(1), 0.2).end_s == 1.0
    plan.forget_copy("thinker", 1)
    assert plan.run(waiting_for(1), 2.0).end_s == pytest.approx(2.001)


def test_a_talker_waits_for_what_the_thinker_hands_over() -> None:
    rate = 1e6 * ENGINE.position_bytes
    plan = devices(
        LinearCosts(launch_s=1.0, token_s=0.0, row_s=0.0, speech_s=0.0, bytes_per_s=rate, delay_s=0.5)
    )
    order = Handoff("thinker", "talker", "hidden", 0, 1, ints([0] * 1000))
    assert plan.hand_over(order, 2.0) == pytest.approx(2.501)
    step = ar_step("talker", joins=(join(0, 1, 4),))
    assert plan.run(step, 2.0).end_s == pytest.approx(3.501)
    plan.forget("talker", 1)
    assert plan.run(step, 9.0).end_s == 10.0
    assert plan.hand_over(msgspec.structs.replace(order, target="encoders"), 2.0) == 2.0


def test_copies_are_reported_when_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node itself orders none yet: here it is made to."""
    agenda, outputs, told = Agenda(), list[Output](), list[tuple[float, Fact]]()
    node = Node(CONFIG, 1)
    driver = VirtualDriver(node, machine(setup()), agenda, outputs.append)
    order = CopyBlocks("thinker", "kv", "host", ints([0]), ints([1]), 0)
    decide = node.decide

    def copies(facts: list[Fact], now: float) -> Decision:
        told.extend((now, fact) for fact in facts)
        decision = decide(facts, now)
        orders = (order,) if any(isinstance(fact, SessionOpened) for fact in facts) else ()
        return msgspec.structs.replace(decision, orders=(*decision.orders, *orders))

    monkeypatch.setattr(node, "decide", copies)
    driver.tell(SessionOpened("s"))
    agenda.run(9.0, lambda: False)
    (at_s, fact) = told[-1]
    assert isinstance(fact, CopyDone)
    assert (fact.stage, fact.ticket) == ("thinker", 0)
    assert 0.0 < fact.seconds <= at_s


def test_the_node_is_asked_when_it_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    agenda = Agenda()
    node = Node(CONFIG, 1)
    driver = VirtualDriver(node, machine(setup()), agenda, lambda output: None)
    decide, asked_s = node.decide, list[float]()
    wishes = iter([0.5, 0.1, None])

    def wakes(facts: list[Fact], now: float) -> Decision:
        asked_s.append(now)
        return msgspec.structs.replace(decide(facts, now), wake_at=next(wishes))

    monkeypatch.setattr(node, "decide", wakes)
    driver.tell(SessionOpened("s"))
    agenda.run(9.0, lambda: False)
    assert asked_s == [0.0, 0.5, 0.5], "what is past is now"


def test_decisions_hold_up_what_follows() -> None:
    agenda, outputs = Agenda(), list[tuple[float, Output]]()
    made = machine(setup(costs=LinearCosts(decide_s=0.25)))
    driver = VirtualDriver(Node(CONFIG, 1), made, agenda, lambda output: outputs.append((agenda.now, output)))
    driver.tell(SessionOpened("s"))
    driver.tell(ItemAdded("s", said("hello")))
    driver.tell(ResponseRequested("s", "r", "a", speech=False, max_tokens=2))
    agenda.run(99.0, lambda: False)
    assert outputs[0][0] > 0.75, "a prompt, a step, and its token: a decision each"
    assert driver.stats()['antiphon_emitted_tokens_total{stage="thinker"}'] == 2


def test_decisions_may_take_as_long_as_they_do_by_a_clock() -> None:
    """Each takes a quarter of a second by this one, also those that order nothing; the costs say nothing."""
    ticks, agenda, outputs = itertools.count(), Agenda(), list[tuple[float, Output]]()
    made = machine(setup(costs=LinearCosts(decide_s=9.0), clock=lambda: 0.25 * next(ticks)))
    driver = VirtualDriver(Node(CONFIG, 1), made, agenda, lambda output: outputs.append((agenda.now, output)))
    driver.tell(SessionOpened("s"))
    driver.tell(ItemAdded("s", said("hello")))
    driver.tell(ResponseRequested("s", "r", "a", speech=False, max_tokens=2))
    agenda.run(99.0, lambda: False)
    assert 0.75 < outputs[0][0] < 3.0
    assert driver.decided_s == pytest.approx(0.25 * driver.num_decisions)
    assert not driver.node.num_in_flight


# -- costs -------------------------------------------------------------------------------------------


def test_hardware_is_found_by_name_or_in_a_file(tmp_path: Path) -> None:
    known = find_costs("h200")
    assert known.provenance.device == "H200"
    assert find_costs("h100").provenance.device == "H100-SXM"
    path = tmp_path / "mine.json"
    path.write_bytes(known.to_json())
    assert find_costs(str(path)) == known
    assert find_costs(str(path.rename(tmp_path / "h200.profile"))) == known
    with pytest.raises(ConfigError, match="There are H200, H100-SXM"):
        find_costs("abacus")
    path.write_text('{"lunch_s": 1}')
    with pytest.raises(ConfigError, match="not a latency profile"):
        find_costs(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_costs(str(tmp_path / "none.json"))


# -- the engine --------------------------------------------------------------------------------------

TINY = NodeConfig(
    graph="qwen3_omni_moe",
    ar={
        "thinker": ArConfig(max_rows=4, block_size=8, num_blocks=64, step_tokens=96, stop_ids=(7,)),
        "talker": ArConfig(max_rows=3, block_size=8, num_blocks=64, stop_ids=(9,), width=4),
    },
    codec={"code2wav": CodecConfig(5)},
    encoder={"encoders": EncoderConfig()},
    end_inputs={"talker": 5},
)


def profiled(node: NodeConfig = TINY, depth: int = 0, **others: Any) -> Profile:
    """The released model's times for another engine."""
    times = msgspec.structs.replace(find_costs("h200"), source="measured", served=Served(node, depth))
    return msgspec.structs.replace(times, **others)


def test_an_engine_that_was_profiled_is_simulated_as_it_was_served() -> None:
    engine = model.engine_of(profiled(), preset="baseline")
    assert engine.node == with_preset(TINY, "baseline")
    assert engine.inline == {"encoders", "thinker", "talker", "code2wav"}
    assert model.engine_of(profiled(depth=1)).inline == frozenset()
    assert engine.position_bytes == 2048 * 2 * 16 // 8, "of a block that the profile knows"
    bigger = model.engine_of(profiled(), sizes=Sizes(max_rows=9, kv_tokens=1024, depth=1))
    assert (bigger.node.ar["talker"].max_rows, bigger.node.ar["talker"].num_blocks) == (9, 128)
    assert bigger.node.ar["talker"].width == 4
    assert bigger.depth == 1


def test_a_single_device_runs_one_step_at_a_time_and_its_driver_waits() -> None:
    """Everything on one CPU, without steps in flight: no two steps overlap, and nothing is decided in one."""
    made = setup("voice-chat", costs=profiled(), engine=model.engine_of(profiled()))
    simulation = Simulation(made)
    spans: list[tuple[float, float]] = []
    devices, decided_s = simulation.driver._machine.devices, list[float]()
    run, decide = devices.run, simulation.driver.node.decide

    def watched(step: Step, now: float) -> BusySpan:
        span = run(step, now)
        spans.append((now, span.end_s))
        return span

    def asked(facts: list[Fact], now: float) -> Decision:
        decided_s.append(now)
        return decide(facts, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Devices, "run", lambda self, step, now, speech=None: watched(step, now))
        patch.setattr(simulation.driver.node, "decide", asked)
        simulation.play(started())
    assert len(spans) > 100
    assert all(before[1] <= after[0] + 1e-12 for before, after in pairwise(spans))
    ends = iter(spans)
    begin, end = next(ends)
    for at_s in decided_s:
        while end < at_s:
            begin, end = next(ends, (inf, inf))
        assert not begin < at_s < end


def test_a_profile_without_its_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="how its engine was served"):
        model.engine_of(profiled(served=None))
    with pytest.raises(ConfigError, match="at least one context"):
        model.released(sizes=Sizes(kv_tokens=100, max_context_tokens=200))


def test_a_model_without_a_voice_has_units_that_write() -> None:
    node = NodeConfig("qwen3", {"thinker": TINY.ar["thinker"]}, {}, {}, {})
    engine = model.engine_of(profiled(node), replicas=Replicas(2, apart=True))
    assert [unit.name for unit in engine.node.units] == ["thinker.0", "thinker.1"]
    events = outcome("readers", costs=profiled(node), engine=engine).events
    assert any(isinstance(event, TextDelta) for event in events)


@pytest.mark.parametrize("wrong", [{"max_rows": 0}, {"depth": 2}, {"kv_tokens": 0}])
def test_sizes_that_cannot_be(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Sizes(**wrong)


def test_replicas_have_devices_of_their_own() -> None:
    apart = placed(TINY, Replicas(2, 1, apart=True))
    assert [(unit.name, unit.device, unit.process) for unit in apart] == [
        ("encoders.0", "thinker.0", "thinker.0"),
        ("encoders.1", "thinker.1", "thinker.1"),
        ("thinker.0", "thinker.0", "thinker.0"),
        ("thinker.1", "thinker.1", "thinker.1"),
        ("talker", "talker", "talker"),
        ("code2wav", "talker", "talker"),
    ]
    together = placed(TINY, Replicas(2, 2))
    assert [unit.name for unit in together if unit.stage == "encoders"] == ["encoders"]
    assert {unit.process for unit in together} == {""}
    with pytest.raises(ConfigError, match="1 or more of every stage"):
        Replicas(0, 1)
