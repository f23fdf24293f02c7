"""Steps, responses and KV residency, read from the record of a real engine."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest

from antiphon import Omni
from antiphon.bench.trace import KvSample, kv_samples, read_residency, read_trace
from antiphon.core.conversation import Item
from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS, NO_TOKENS, StepDone, StepFailed
from antiphon.core.plans import CodecStep, Decision
from antiphon.engine.load import Engine
from antiphon.runtime.omni import parts_of
from antiphon.runtime.record import RecordWriter
from exactness.talk import Talk


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    return Omni(tiny_checkpoint, device="cpu", max_rows=4).engine


@pytest.fixture(scope="module")
def record(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people, one of whom comes while the other's reply is under way and then cancels."""
    path = tmp_path_factory.mktemp("record") / "a.record"
    writer = RecordWriter(path, engine.node, engine.depth)
    talk = Talk(engine, recorder=writer)
    talk.open("a", Item("q", "user", parts_of("how are you?")))
    talk.ask("a")
    talk.step(6)
    noise = (0.1 * np.random.default_rng(0).standard_normal(17_000)).astype(np.float32)
    talk.open("b", Item("q", "user", parts_of([{"audio": noise}, "what?"])))
    talk.ask("b")
    talk.step(10)
    talk.cancel("b")
    talk.run()
    talk.close("a", "b")
    talk.run()
    writer.close()
    return path


def test_steps_and_responses(record: Path) -> None:
    trace = read_trace(record)
    assert set(trace.stages) == {"encoders", "thinker", "talker", "code2wav"}
    assert [step.step for step in trace.steps] == sorted(step.step for step in trace.steps)
    assert {step.work for step in trace.steps} >= {"encode", "prefill", "decode", "codec"}
    prompts = [step for step in trace.steps if step.work == "prefill"]
    assert all(step.tokens > step.rows for step in prompts)
    assert all(step.tokens == step.rows for step in trace.steps if step.work == "decode")
    pairs = itertools.pairwise(trace.steps)
    assert all(first.end_s <= second.start_s <= second.end_s for first, second in pairs)
    assert {span.session: span.status for span in trace.responses}["b"] == "cancelled"
    assert all(0 <= span.start_s < span.end_s for span in trace.responses)
    assert not any(step.is_failed for step in trace.steps)


def test_residency(record: Path, engine: Engine) -> None:
    samples = read_residency(record)
    assert {sample.stage for sample in samples} == {"thinker", "talker"}
    for sample in samples:
        total = engine.node.ar[sample.stage].num_blocks
        assert sample.used + sample.idle + sample.free == total
        assert min(sample.used, sample.idle, sample.free) >= 0
    assert max(sample.used for sample in samples) > 0
    assert [sample.used for sample in samples if sample.stage == "talker"][-1] == 0


def test_residency_of_other_decisions(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "a.record"
    writer = RecordWriter(path, engine.node, engine.depth)
    writer.write(0.0, [], Decision((), (), wake_at=3.0))
    writer.close()
    with pytest.raises(ConfigError, match="entry 0 is decided otherwise"):
        read_residency(path)
    with pytest.raises(ConfigError, match="no step has ended"):
        read_trace(path)


def test_a_failed_step_and_one_without_an_order(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "a.record"
    writer = RecordWriter(path, engine.node, 1)
    rows = np.zeros(1, np.int64)
    steps = [
        CodecStep(
            "code2wav", number, rows, rows, rows, np.array([4]), np.zeros((4, 2), np.int64), "whole chunks"
        )
        for number in (7, 8)
    ]
    writer.write(1.0, [], Decision((steps[0],), ()))
    writer.write(1.5, [], Decision((steps[1],), ()))
    failed = StepFailed("code2wav", 7, rows, NO_INTS, "oh")
    done = [StepDone("code2wav", number, rows, NO_TOKENS, rows, NO_INTS) for number in (3, 8)]
    writer.write(2.0, [failed], Decision((), ()))
    writer.write(4.0, list(done), Decision((), ()))
    writer.close()
    first, second = read_trace(path).steps
    assert (first.step, first.is_failed, first.start_s, first.end_s, first.tokens) == (7, True, 0.0, 1.0, 4)
    assert (second.step, second.is_failed, second.start_s, second.end_s) == (8, False, 1.0, 3.0)


def test_what_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(msgspec.msgpack.encode("hm"))
    for read in (read_trace, read_residency):
        with pytest.raises(ConfigError, match="not a record file"):
            read(path)


def test_samples_of_a_server() -> None:
    values = {
        'antiphon_kv_blocks{stage="thinker"}': 10.0,
        'antiphon_kv_blocks_free{stage="thinker"}': 5.0,
        'antiphon_kv_blocks_idle{stage="thinker"}': 3.0,
        "antiphon_sessions": 1.0,
    }
    assert kv_samples(2.0, values) == [KvSample(2.0, "thinker", used=2, idle=3, free=5)]
    assert kv_samples(2.0, {}) == []
