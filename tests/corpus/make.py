"""Makes the corpus of records that the scheduler is held to: what a node was told, and what it decided.

    PYTHONPATH=tests python tests/corpus/make.py CHECKPOINT [NAME ...]

In the simulator (`sim-*`), over the toy model (`toy-*`) and on an engine that is served (`engine-*`), which
needs a checkpoint (`antiphon checkpoint demo CHECKPOINT --size tiny`). Compressed, beside this file. A record
of the corpus is made again only where a decision changes on purpose.

`v1` has what was recorded before there were policies for all decisions (record version 1). What stands there
stands here as `antiphon lift` turns it, with the same decisions; only `test_lift.EXCEPTIONS` were made again.
"""

from __future__ import annotations

import asyncio
import lzma
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from antiphon.assembly.preset import with_preset
from antiphon.core.config import NodeConfig, Unit
from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import ItemAdded, ResponseCancelled, ResponseRequested, SessionClosed, SessionOpened
from antiphon.runtime.record import Header, RecordWriter, framed, frames
from antiphon.sim.model import Sizes, released
from antiphon.sim.run import Setup, simulate
from antiphon.workload.load import changed, find
from fakes import toy
from fakes.serving import serving
from fakes.world import World, toy_config
from sim.linear import LinearCosts
from sim.runs import started

HERE = Path(__file__).parent
APART = tuple(Unit(name, name, process=name) for name in ("encoders", "thinker", "talker", "code2wav"))
SPLIT = (
    Unit("encoders", "encoders", "a"),
    Unit("thinker.0", "thinker", "a", role="prefill"),
    Unit("thinker.1", "thinker", "b", role="decode"),
    Unit("talker", "talker", "c"),
    Unit("code2wav", "code2wav", "c"),
)


TALKATIVE = str(HERE / "talkative.yaml")
PACED, TURNS = str(HERE / "paced.yaml"), str(HERE / "turns.yaml")


def simulated(
    workload: str, preset: str, concurrency: int, duration_s: float, kv_tokens: int, host_tokens: int = 0
) -> Callable[[Path], None]:
    """A run on a small machine. Where `kv_tokens` is 65536, memory never runs short."""

    def make(path: Path) -> None:
        sizes = Sizes(max_rows=6, kv_tokens=kv_tokens, step_tokens=64, max_context_tokens=512)
        engine = released(preset, sizes)
        ar = {
            name: msgspec.structs.replace(config, host_blocks=host_tokens // config.block_size)
            for name, config in engine.node.ar.items()
        }
        node = msgspec.structs.replace(engine.node, ar=ar)
        engine = replace(engine, served=msgspec.structs.replace(engine.served, node=node))
        settings = {"load": {"closed": {"concurrency": concurrency, "duration_s": duration_s}}}
        costs = LinearCosts(speech_s=0.03, bytes_per_s=2e9)
        writer = RecordWriter(path, node, engine.depth)
        asked = changed(find(workload), settings)
        simulate(Setup(asked, costs, 7, engine, recorder=writer), started(7))
        writer.close()

    return make


def toyed(
    play: Callable[[World], None], depth: int = 0, preset: str = "baseline", **sizes: Any
) -> Callable[[Path], None]:
    """The toy model, played to by hand."""

    def make(path: Path) -> None:
        config: NodeConfig = with_preset(toy_config(**sizes), preset)
        writer = RecordWriter(path, config, depth)
        play(World(config, depth, writer))
        writer.close()

    return make


def talk(world: World, turns: int = 3, people: str = "abcdef") -> None:
    for turn in range(turns):
        for person in people:
            if not turn:
                world.send(SessionOpened(person))
            parts = (TextPart(f"turn {turn} of {person}, who has a lot to say"), toy.tone(turn))
            world.send(ItemAdded(person, Item(f"{person}{turn}", "user", parts)))
            world.send(ResponseRequested(person, f"{person}{turn}", f"reply-{person}{turn}"))
        for _ in range(25):
            world.turn()
        if turn == 1:
            world.send(ResponseCancelled("b", "b1"), SessionClosed("c"))
    world.run()


def lose(world: World) -> None:
    """The processes of two stages die in the midst of replies."""
    talk(world, 1)
    for victim in ("talker", "thinker"):
        for person in "ab":
            text = (TextPart(f"before the {victim} dies"),)
            world.send(ItemAdded(person, Item(f"{person}-{victim}", "user", text)))
            world.send(ResponseRequested(person, victim + person, f"reply-{victim}{person}"))
        for _ in range(12):
            world.turn()
        world.kill(victim)
        world.run()
    talk(world, 2, "xyz")


def served(checkpoint: Path, *options: str, kill: str = "", bench: tuple[str, ...]) -> Callable[[Path], None]:
    """A served engine and people over the wire. `kill`: whose process dies after three seconds."""

    async def make(path: Path) -> None:
        async with serving(checkpoint, path, *options) as url:
            command = ["bench", "--url", url, "--log", str(path.with_suffix(".jsonl")), *bench]
            people = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "antiphon", *command),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            if kill:
                await asyncio.sleep(3.0)
                os.kill(
                    stage_pids()[("encoders", "thinker", "talker", "code2wav").index(kill)], signal.SIGKILL
                )
            await people.wait()

    return lambda path: asyncio.run(make(path))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def stage_pids() -> list[int]:
    """In the order of the pipeline."""
    (server,) = (p for p in children(os.getpid()) if b"serve" in Path(f"/proc/{p}/cmdline").read_bytes())
    (engine,) = children(server)
    return children(engine)


def corpus(checkpoint: Path) -> dict[str, Callable[[Path], None]]:
    """Every record by name; those with `short` in it run out of memory."""
    four = ("--workload", TALKATIVE, "--concurrency", "4", "--duration", "8")
    eight = (*four[:3], "8", "--duration", "16")
    small = ("--kv-tokens", "384", "--max-context-tokens", "288", "--max-rows", "3")
    return {
        "sim-idle-baseline": simulated("voice-chat", "baseline", 1, 12.0, 65536),
        "sim-loaded-baseline": simulated("mixed", "baseline", 10, 4.0, 65536),
        "sim-loaded-fcfs": simulated("mixed", "fcfs", 10, 4.0, 65536),
        "sim-barge-in-baseline": simulated(TALKATIVE, "baseline", 5, 20.0, 65536),
        "sim-best-effort-baseline": simulated("agents", "baseline", 8, 3.0, 65536),
        "sim-short-baseline": simulated(TALKATIVE, "baseline", 8, 14.0, 640),
        "sim-short-fcfs": simulated(TALKATIVE, "fcfs", 8, 14.0, 640),
        "sim-short-host-baseline": simulated(TALKATIVE, "baseline", 8, 14.0, 640, 16384),
        "sim-short-host-fcfs": simulated(TALKATIVE, "fcfs", 8, 14.0, 640, 16384),
        "sim-paced": simulated(TALKATIVE, PACED, 3, 10.0, 65536),
        "toy-kept": toyed(talk, 1, TURNS, rows=3, blocks=40, host_blocks=60),
        "toy-short-depth1": toyed(talk, 1, rows=3, blocks=26),
        "toy-short-host": toyed(talk, 0, rows=3, blocks=26, host_blocks=60),
        "toy-split": toyed(talk, 1, rows=4, blocks=64, units=SPLIT),
        "toy-lost": toyed(lose, 1, rows=4, blocks=64, units=APART),
        "engine-idle": served(
            checkpoint, bench=("--workload", "smoke", "--concurrency", "1", "--duration", "5")
        ),
        "engine-loaded": served(checkpoint, "--preset", "fcfs", bench=eight),
        "engine-short": served(checkpoint, *small, bench=eight),
        "engine-short-host": served(checkpoint, *small, "--host-kv-tokens", "32768", bench=eight),
        "engine-lost-thinker": served(checkpoint, "--stages-apart", kill="thinker", bench=four),
        "engine-lost-talker": served(checkpoint, "--stages-apart", kill="talker", bench=four),
    }


def anywhere(record: Path) -> bytes:
    """The record without the name of this folder: its policies are named beside their preset."""
    header = next(frames(record))
    named = msgspec.json.encode(msgspec.msgpack.decode(header)).replace(f"{HERE}/".encode(), b"")
    rest = record.read_bytes()[4 + len(header) :]
    return framed(msgspec.json.decode(named, type=Header)) + rest


def main(checkpoint: str, *names: str) -> None:
    makers = corpus(Path(checkpoint))
    for name in names or makers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record"
            makers[name](path)
            data = anywhere(path)
            (HERE / f"{name}.xz").write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        print(f"{name}: {len(data)} bytes, {(HERE / f'{name}.xz').stat().st_size} compressed")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
