"""What `simulate` and `plan` share: the machine that is asked for, and the first line of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from antiphon.cli.options import finite
from antiphon.cli.shared import console, split
from antiphon.core.errors import ConfigError
from antiphon.latency.roofline import hardware_names

if TYPE_CHECKING:
    from antiphon.latency.profile import Profile
    from antiphon.metrics.log import RunStarted
    from antiphon.sim.model import SimEngine, Sizes
    from antiphon.sim.places import Replicas
    from antiphon.sim.run import Setup

Hardware = Annotated[
    str,
    typer.Option(
        help=f"A datasheet ({', '.join(hardware_names())}), or the JSON file that `antiphon profile` wrote."
    ),
]
ReplicaCounts = Annotated[
    str,
    typer.Option(
        "--replicas",
        help="Devices of each stage, such as thinker=4,talker=4, encoders and vocoders beside them. By "
        "default as the engine was profiled; of a datasheet, one each.",
    ),
]
PresetName = Annotated[str, typer.Option(help="Which policies decide.")]
Seed = Annotated[
    int, typer.Option(min=0, help="The same seed, the same log, byte for byte beside its first line.")
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        min=1, help="Requests that run at once in a replica of a stage. As profiled; of a datasheet, 64."
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="KV capacity of a replica of a stage, in tokens. As profiled; of a datasheet, what fits, at "
        "most 262144.",
    ),
]
ReplyTokens = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=1_000_000,
        callback=finite,
        help="Median tokens of a reply to which its client sets no limit.",
    ),
]
FramesPerToken = Annotated[
    float | None,
    typer.Option(min=0, max=1000, callback=finite, help="Codec frames (80 ms) of a token that is spoken."),
]
NetworkMs = Annotated[
    float, typer.Option(min=0, callback=finite, help="From a client to the server or back, in ms.")
]


def first_line(setup: Setup, label: str, hardware: str, replicas: str) -> RunStarted:
    """Says what was simulated, and nothing of when: the same run has the same log."""
    from antiphon.bench import provenance
    from antiphon.metrics.log import RunStarted

    workload = setup.workload
    return RunStarted(
        t_s=0.0,
        label=label,
        url="",
        workload=workload.name,
        seed=setup.seed,
        command=provenance.command(),
        commit=provenance.commit(),
        machine=f"simulated: {hardware}, {replicas}",
        version=provenance.package_version(),
        unix_s=0.0,
        options={
            "preset": setup.engine.node.preset,
            "load": workload.load.model_dump(mode="json", exclude_none=True),
            "turn_detection": workload.turn_detection,
            "patience_s": setup.patience_s,
            "network_s": setup.network.delay_s,
            "engine": engine_options(setup.engine),
        },
    )


def engine_options(engine: SimEngine) -> dict[str, Any]:
    """What its stages were given."""
    node = engine.node
    return {
        "depth": engine.depth,
        "units": [f"{unit.name} on {unit.process}/{unit.device}" for unit in node.placed],
        "max_rows": {stage: config.max_rows for stage, config in node.ar.items()},
        "kv_tokens": {stage: config.num_blocks * config.block_size for stage, config in node.ar.items()},
    }


def simulated_engine(
    profile: Profile, preset: str, sizes: Sizes, replicas: str, law: tuple[float | None, float | None]
) -> SimEngine:
    """law: median tokens of a reply and frames a token, where they are not the profile's.

    Raises ConfigError.
    """
    from dataclasses import replace as changed

    from antiphon.sim.model import engine_of

    engine = engine_of(profile, preset, sizes, counted(replicas))
    if profile.served is None:
        say_context(engine)
    tokens, frames = law
    if tokens is not None or frames is not None:
        known = engine.replies
        replies = msgspec.structs.replace(
            known,
            median_tokens=known.median_tokens if tokens is None else tokens,
            frames_per_token=known.frames_per_token if frames is None else frames,
        )
        engine = changed(engine, served=msgspec.structs.replace(engine.served, replies=replies))
    return engine


def say_context(engine: SimEngine) -> None:
    """Where the KV is too small for what a datasheet's engine would take."""
    from antiphon.sim.model import ROOMY

    most, usual = next(iter(engine.node.ar.values())).max_context_tokens, ROOMY.max_context_tokens
    if most is not None and usual is not None and most < usual:
        console.print(
            f"the KV holds {most} tokens, so longer contexts fail (the limit of a prompt and its reply is "
            f"{usual} where the KV has room)",
            soft_wrap=True,
        )


def counted(replicas: str) -> Replicas | None:
    """`thinker=4,talker=2`; more than one of either are processes of their own. Raises ConfigError."""
    from antiphon.sim.places import Replicas

    if not replicas:
        return None
    counts: dict[str, int] = {}
    for one in split(replicas):
        stage, _, count = one.partition("=")
        is_number = count.isascii() and count.isdecimal()
        if stage not in ("thinker", "talker") or not is_number or int(count) < 1:
            raise ConfigError(f"--replicas {one}: expected thinker=N or talker=N with N of 1 or more")
        if stage in counts:
            raise ConfigError(f"--replicas {replicas}: {stage} is there twice; name it once")
        counts[stage] = int(count)
    thinkers, talkers = counts.get("thinker", 1), counts.get("talker", 1)
    return Replicas(thinkers, talkers, apart=max(thinkers, talkers) > 1)
