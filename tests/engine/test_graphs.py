"""Captured work: buckets, padding, static tensors; and that nobody's tokens depend on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon import Omni, Sampling
from antiphon.core.config import EngineOptions
from antiphon.core.errors import ConfigError
from antiphon.engine.ar import ArExecutor
from antiphon.engine.graphs import ColumnDraw, columns
from antiphon.engine.load import Engine, Loader, build_engine, open_source
from antiphon.engine.rehearsal import buckets_for
from antiphon.engine.sampler import Draw
from antiphon.engine.speech import PREDICTOR_STAGE
from antiphon.nn.graphs import BUCKETS, Bucketed, bucket_of
from engine.test_depth import CROWD, HOT, check, crowd, words
from exactness.talk import SIZES
from fakes.capture import Recorder


def test_the_least_bucket_that_holds_them() -> None:
    buckets = 1, 2, 4, 8
    assert [bucket_of(rows, buckets) for rows in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, None]


def test_a_bucket_is_captured_once_and_pads() -> None:
    recorder, seen = Recorder(), []

    def double(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        seen.append(x.shape[0])
        return (2 * x + y,)

    work = Bucketed(double, recorder, (2, 4))
    for rows in (3, 1, 4, 2, 3):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        torch.testing.assert_close(work(x, y)[0], 2 * x + y)
    assert (recorder.captures, recorder.replays) == (2, 5)
    assert set(seen) == {2, 4}
    assert seen[0] == 4, "the most rows first: what grows with them has grown before a graph sees it"
    x = torch.randn(9, 5)
    torch.testing.assert_close(work(x, x)[0], 3 * x)
    assert (recorder.captures, recorder.replays) == (2, 8), "more rows than the largest bucket take turns"
    assert set(seen) == {2, 4}


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.nonzero(),
    ],
)
def test_the_stand_in_refuses_what_a_graph_cannot_capture(waits: Callable) -> None:
    work = Bucketed(lambda x: (waits(x),), Recorder(), (4,))
    with pytest.raises(AssertionError, match="waits for the device"):
        work(torch.ones(2, 3))


def test_padding_holds_what_the_function_takes() -> None:
    """Rows of zeros would be no input here."""
    work = Bucketed(lambda ids: (torch.arange(3.0)[ids - 7],), Recorder(), (4,))
    assert work(torch.tensor([9, 8]))[0].tolist() == [2.0, 1.0]


def test_columns_draw_what_parameters_draw() -> None:
    """Alone and mixed, with and without each cut, bit for bit."""
    rng = np.random.default_rng(3)
    params = [
        Sampling(temperature=t, top_k=k, top_p=p, seed=int(rng.integers(2**40)))
        for t in (0.0, 0.7, 1.3)
        for k in (0, 1, 50, 999)
        for p in (0.3, 0.8, 1.0)
    ]
    logits = torch.randn(len(params), 200, generator=torch.Generator().manual_seed(1)) * 3
    positions = rng.integers(0, 90, len(params))
    for chosen in (range(len(params)), range(3), range(24, 36), [13], [35]):
        some, at = [params[i] for i in chosen], positions[list(chosen)]
        mine = logits[list(chosen)]
        draw = ColumnDraw(*columns(some, at, torch.device("cpu")))
        for codebook in (1, 7):
            expected = Draw(some, PREDICTOR_STAGE, "cpu").at(at)(mine, codebook)
            assert draw(mine, codebook).tolist() == expected.tolist()


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def captured(tiny_checkpoint: Path, recorder: Recorder) -> Engine:
    options = EngineOptions(device="cpu", dtype="float64", max_rows=4)
    opened = open_source(str(tiny_checkpoint), options, lambda *_: None)
    return build_engine(opened, options, "tiny", Loader(opened, lambda *_: None, capture=recorder))


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path) -> dict[str, tuple[list, list, str]]:
    engine = Omni(tiny_checkpoint, device="cpu", dtype="float64", max_rows=4, **SIZES).engine
    out = {}
    for name in CROWD:
        talk = crowd(engine, [name])
        talk.run()
        out[name] = words(talk.said[name])
    return out


@pytest.mark.parametrize(("pause", "overrides"), [(0, {}), (3, {}), (2, {"max_rows": 3, "step_tokens": 7})])
def test_a_mixed_crowd(
    captured: Engine, recorder: Recorder, alone: dict, pause: int, overrides: dict
) -> None:
    """Greedy and sampling rows, joining and leaving."""
    before = recorder.replays
    talk = crowd(captured, list(CROWD), pause, **overrides)
    talk.run()
    check(talk, alone, list(CROWD))
    assert recorder.replays > before + 100


def test_a_step_that_only_samples(captured: Engine, alone: dict) -> None:
    assert HOT["talker"].temperature > 0
    talk = crowd(captured, ["hot", "late"])
    talk.run()
    check(talk, alone, ["hot", "late"])


def test_everything_is_captured_before_anybody_comes(tiny_checkpoint: Path) -> None:
    """Of any number of rows and both ways to draw; what was run for nobody leaves nothing behind."""
    recorder, shown = Recorder(), []
    options = EngineOptions(device="cpu", dtype="float64", max_rows=4)
    opened = open_source(str(tiny_checkpoint), options, lambda *_: None)
    loader = Loader(opened, lambda *values: shown.append(values), capture=recorder)
    engine = build_engine(opened, options, "tiny", loader)
    before = recorder.captures
    captured = [values for values in shown if values[0].startswith("rehearsing")]
    assert captured == [(f"rehearsing {name}", n, 3) for name in ("thinker", "talker") for n in range(4)]
    for executor in engine.executors.values():
        if isinstance(executor, ArExecutor):
            planes = executor.runner.pool.device.values()
            assert not any(tensor.any() for group in planes for layer in group for tensor in layer)
    crowd(engine, list(CROWD), 2).run()
    assert recorder.captures == before > 0


def test_buckets_that_a_stage_may_need() -> None:
    assert buckets_for(1) == (1,)
    assert buckets_for(3) == buckets_for(4) == (1, 2, 4)
    assert buckets_for(64) == buckets_for(500) == BUCKETS


def test_fp32_is_not_rounded_on_the_way(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cudnn.allow_tf32", True)
    for dtype, may_round in (("bfloat16", True), ("float32", False)):
        open_source(str(tiny_checkpoint), EngineOptions(device="cpu", dtype=dtype), lambda *_: None)
        assert torch.backends.cudnn.allow_tf32 is may_round


def test_refused_where_there_is_no_cuda(tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="--cuda-graphs needs CUDA, and the device is cpu"):
        Omni(tiny_checkpoint, device="cpu", graphs="on")
    with pytest.raises(ConfigError, match="graphs is 'maybe'; it must be off or on"):
        EngineOptions(graphs="maybe")
