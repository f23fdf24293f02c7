"""LiveServe's Table 1: what a call costs that frees one session's blocks by next use, with an index and by a
scan of everybody.

    python benchmarks/eviction_index.py --out benchmarks/results/eviction-index.json

Sessions rest in a stage whose device is full, each due at a time of its own. Each call makes room for 64
blocks, or as many as the session that is needed last has left: first through the preset `liveserve` (policy,
guard and ledgers), then by a scan that asks when everybody is due and has the farthest evicted. A scan reads
all sessions, so it would leave the next indexed call with cold caches. Milliseconds a call: as they pass,
with what other processes take of a busy machine, and of the processor (`cpu`), without.
"""

from __future__ import annotations

import argparse
import gc
import time
from itertools import cycle
from pathlib import Path

import numpy as np

from antiphon.assembly.node import Node
from antiphon.bench import provenance
from antiphon.core.config import ArConfig, EncoderConfig, NodeConfig
from antiphon.core.facts import ResponseRequested, SessionOpened
from antiphon.core.plans import ResponseEnded, Usage
from antiphon.core.sampling import Sampling
from antiphon.kv.sequences import prefix_of

BLOCK = 16
MOST = 64
"""Blocks that a call frees at most, of one session."""
NOW = 1000.0


def node(blocks: int) -> Node:
    thinker = ArConfig(
        max_rows=8,
        block_size=BLOCK,
        num_blocks=blocks,
        step_tokens=256,
        stop_ids=(1,),
        sampling=Sampling(max_tokens=64),
    )
    encoder = {"encoders": EncoderConfig(step_media=1, cached_media=1)}
    config = NodeConfig(
        graph="qwen3_omni_moe",
        preset="liveserve",
        ar={"thinker": thinker},
        codec={},
        encoder=encoder,
        end_inputs={},
    )
    return Node(config)


def full(sessions: int, blocks: int, rng: np.random.Generator) -> Node:
    """Every session rests, and is due some time before or after now."""
    made = node(blocks)
    ar, each = made.stages.ar["thinker"], blocks // sessions
    spread = np.sort(rng.uniform(NOW - 300, NOW, sessions))
    for at, now in enumerate(spread.tolist()):
        name, response = f"s{at}", f"r{at}"
        for fact in (SessionOpened(name), ResponseRequested(name, response, "item")):
            made.monitor.observe(fact, now)
            made.next_use.observe(fact, now)
        ended = ResponseEnded(name, response, "completed", "", "", Usage())
        made.monitor.hear([ended], now)
        made.next_use.hear([ended], now)
        keys = rng.integers(0, 1 << 62, each * BLOCK + 1)
        sequence, _ = ar.kv.open(name, prefix_of(keys, BLOCK), each, None)
        assert ar.kv.grow(sequence, each * BLOCK)
        ar.kv.park(name, sequence, keys[: each * BLOCK], None)
        ar.tiers.rest(name, name)
    ar.tiers.asks.tell_time(NOW)
    return made


def indexed(made: Node, count: int) -> tuple[float, float]:
    """Seconds that passed, and of the processor."""
    tiers, kv = made.stages.ar["thinker"].tiers, made.stages.ar["thinker"].kv
    wanted = kv.blocks.num_free + count
    began, cpu = time.perf_counter(), time.thread_time()
    tiers.room.make_room(wanted)
    took = time.perf_counter() - began, time.thread_time() - cpu
    assert kv.blocks.num_free == wanted
    return took


def scanned(made: Node, count: int) -> tuple[float, float]:
    """The same."""
    kv, next_use = made.stages.ar["thinker"].kv, made.next_use
    before = kv.blocks.num_free
    began, cpu = time.perf_counter(), time.thread_time()
    short = count
    for name in sorted(kv.resting.owners, key=lambda owner: next_use.due_s(owner, NOW), reverse=True):
        evicted = kv.resting.evict(name, short)
        kv.blocks.take_back(block for run in evicted for block in run.blocks)
        short = count - (kv.blocks.num_free - before)
        if short <= 0:
            break
    took = time.perf_counter() - began, time.thread_time() - cpu
    assert kv.blocks.num_free == before + count
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    made = full(arguments.sessions, arguments.blocks, np.random.default_rng(0))
    gc.freeze()
    each = arguments.blocks // arguments.sessions
    sizes = cycle([min(MOST, each - at) for at in range(0, each, MOST)])
    by_index = [indexed(made, next(sizes)) for _ in range(arguments.calls)]
    by_scan = [scanned(made, next(sizes)) for _ in range(arguments.calls // 10)]
    times: dict[str, list[float]] = {}
    for name, spans in (("indexed", by_index), ("scanned", by_scan)):
        times[f"{name}_ms"] = [wall_s * 1e3 for wall_s, _ in spans]
        times[f"{name}_cpu_ms"] = [cpu_s * 1e3 for _, cpu_s in spans]
    made.check_integrity()
    found = {
        name: {
            "mean": round(float(np.mean(spans)), 4),
            "p50": round(float(np.percentile(spans, 50)), 4),
            "p90": round(float(np.percentile(spans, 90)), 4),
        }
        for name, spans in times.items()
    }
    ratio = found["scanned_ms"]["mean"] / found["indexed_ms"]["mean"]
    cpu_ratio = found["scanned_cpu_ms"]["mean"] / found["indexed_cpu_ms"]["mean"]
    result = {
        "sessions": arguments.sessions,
        "blocks": arguments.blocks,
        "blocks_a_call": MOST,
        "calls": arguments.calls,
        **found,
        "scan_over_index": round(ratio, 1),
        "scan_over_index_cpu": round(cpu_ratio, 1),
    }
    provenance.keep(result, arguments.out)


if __name__ == "__main__":
    main()
