"""What needs a GPU: `make test-gpu`. Whatever passes here on a device may be marked verified there.

Tokens are compared with transformers on the CPU in fp64, where rounding decides nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon import Omni
from antiphon.core.config import ArConfig
from antiphon.core.facts import CopyDone
from antiphon.core.plans import ArStep, CopyBlocks, ints
from antiphon.engine.copies import CopyStreamLane, KvCopies, lane_maker
from antiphon.engine.kv_pool import KvPool
from antiphon.nn.attention import PagedBatch, paged_attention
from antiphon.nn.backends import BACKENDS
from antiphon.nn.graphs import Bucketed, cuda_capture
from engine.test_depth import CROWD, check, crowd, words
from exactness.conftest import World, world  # noqa: F401
from exactness.talk import Talk
from exactness.test_reference import ask_all
from nn.test_backends import layout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`"),
    pytest.mark.timeout(600),
]
CUDA = torch.device("cuda")
ROWS = [
    [(0, 1), (700, 1), (31, 1)],
    [(0, 70), (30, 1), (16, 16), (1500, 1), (600, 40)],
    [(4000, 1)] + [(17 * i, 1) for i in range(31)],
]
NEAR = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{len(rows)} rows")
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("name", [name for name, backend in BACKENDS.items() if "cuda" in backend.devices])
def test_attention_is_the_references(name: str, dtype: torch.dtype, rows: list[tuple[int, int]]) -> None:
    """Qwen3-Omni's thinker: 32 heads of 128 that share 4 KV heads."""
    if obstacle := BACKENDS[name].obstacle(CUDA, dtype):
        pytest.skip(f"{name} {obstacle}")
    lengths = [n for _, n in rows], [c for c, _ in rows]
    tables = layout(rows, 16, [2, 9, 40], seed=1)
    noise = torch.Generator("cuda").manual_seed(0)
    shape = sum(map(len, tables)), 16, 4, 128
    k, v = (torch.randn(shape, device=CUDA, generator=noise).to(dtype) for _ in range(2))
    q = torch.randn(sum(lengths[0]), 32, 128, device=CUDA, generator=noise).to(dtype)
    expected = paged_attention(
        q.double(), k.double(), v.double(), PagedBatch.build(*lengths, tables, 16, CUDA)
    )
    attention, batch = BACKENDS[name].create(), PagedBatch.build(*lengths, tables, 16, CUDA)
    for _ in range(2):  # as two layers of one step
        out = attention(q, k, v, batch)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=NEAR[dtype])


def test_a_graph_computes_what_it_captured() -> None:
    weight = torch.randn(64, 64, device=CUDA)
    work = Bucketed(lambda x: (x @ weight, x.cos()), cuda_capture(CUDA), (1, 4))
    for rows in (3, 1, 4, 2, 1):
        x = torch.randn(rows, 64, device=CUDA)
        product, cosine = work(x)
        torch.testing.assert_close(product, x @ weight)
        torch.testing.assert_close(cosine, x.cos())


def new_pool() -> KvPool:
    shape = 40, 16, 2, 64
    pages = [tuple(torch.rand(shape, device=CUDA) for _ in range(2)) for _ in range(6)]
    return KvPool(pages, ArConfig(num_blocks=40, block_size=16, host_blocks=30))


def test_the_host_tier_is_pinned() -> None:
    assert all(tensor.is_pinned() for planes in new_pool().host.values() for t in planes for tensor in t)


def test_blocks_go_and_come_back_on_streams_of_their_own() -> None:
    """One a direction; what comes back is what has just gone, so it waits for that. The pages are spoilt
    between the two; each layer is read behind its own event only."""
    pool = new_pool()
    (group,) = pool.groups
    assert isinstance(lane_maker(CUDA)(), CopyStreamLane)
    mover = KvCopies({"s": pool}, lane_maker(CUDA))
    blocks, host, others = list(range(3, 23)), list(range(29, 9, -1)), list(range(39, 19, -1))
    before = [tuple(tensor[blocks].clone() for tensor in layer) for layer in pool.device[group]]
    mover.copy(CopyBlocks("s", group, "host", ints(blocks), ints(host), 0))
    ready = pool.ready(group, 5, (0,))
    assert ready is not None
    ready()
    for layer in pool.device[group]:
        for tensor in layer:
            tensor.fill_(torch.nan)
    mover.copy(CopyBlocks("s", group, "device", ints(host), ints(others), 1))
    for index, layer in enumerate(pool.device[group]):
        wait = pool.ready(group, index, (1,))
        assert wait is not None
        wait()
        for tensor, was in zip(layer, before[index], strict=True):
            assert torch.equal(tensor[others], was)
    torch.cuda.synchronize()
    assert mover.poll() == [CopyDone("s", 0), CopyDone("s", 1)]


@pytest.mark.parametrize("world", [0], indirect=True)
@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_frames_and_waveform_are_transformers(world: World, depth: int, graphs: str) -> None:  # noqa: F811
    omni = Omni(world.path, device="cuda", dtype="float64", depth=depth, graphs=graphs, step_tokens=4096)
    ask_all(world, Talk(omni.engine), range(len(world.contents)), pause=0)
    ask_all(world, Talk(omni.engine), range(len(world.contents)), pause=3)
    ask_all(world, Talk(omni.engine, step_tokens=33, max_rows=3), [1, 3, 5], pause=2)


@pytest.mark.parametrize("world", [0], indirect=True)
@pytest.mark.parametrize("attention", ["reference", "triton"])
@pytest.mark.parametrize("graphs", ["off", "on"])
def test_text_and_frames_are_transformers_in_fp32(
    world: World,  # noqa: F811
    attention: str,
    graphs: str,
) -> None:
    """Rounding may decide between near ties: nearly all tokens, not all, have to be the same."""
    if obstacle := BACKENDS[attention].obstacle(CUDA, torch.float32):
        pytest.skip(f"{attention} {obstacle}")
    omni = Omni(
        world.path,
        device="cuda",
        dtype="float32",
        attention=attention,
        graphs=graphs,
        step_tokens=4096,
    )
    talk = Talk(omni.engine)
    for index in range(len(world.contents)):
        talk.open(str(index), world.item(index))
        talk.ask(str(index))
    talk.run()
    same = [
        talk.said[str(index)].codes == world.expect_content(index).codes.tolist()
        for index in range(len(world.contents))
    ]
    assert sum(same) >= len(same) - 1, same


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_who_samples_draws_what_a_cpu_draws(tiny_checkpoint: Path, graphs: str) -> None:
    """Noise is counted, not drawn: the same on every device, in every batch, captured or not."""
    alone = {}
    for name in CROWD:
        talk = crowd(Omni(tiny_checkpoint, device="cpu", dtype="float64").engine, [name])
        talk.run()
        alone[name] = words(talk.said[name])
    engine = Omni(tiny_checkpoint, device="cuda", dtype="float64", max_rows=4, graphs=graphs).engine
    assert engine.depth == 1
    for pause in (0, 3):
        talk = crowd(engine, list(CROWD), pause)
        talk.run()
        check(talk, alone, list(CROWD))


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_decode_step_is_launched_without_waiting(tiny_checkpoint: Path, graphs: str) -> None:
    """Else nothing is decided while it runs: depth 1 would overlap nothing."""
    engine = Omni(tiny_checkpoint, device="cuda", dtype="float32", max_rows=4, graphs=graphs).engine
    launched = dict.fromkeys(("thinker", "talker"), 0)
    for name in launched:
        executor: Any = engine.executors[name]
        runner = executor.inner.runner

        def run(step: ArStep, runner: Any = runner, name: str = name, go: Any = runner.run) -> torch.Tensor:
            if step.joins or (step.counts > 1).any():
                return go(step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return go(step)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                launched[name] += 1

        runner.run = run
    talk = crowd(engine, list(CROWD))
    talk.run()
    assert all(talk.said[name].codes for name in CROWD)
    assert all(launched.values())
