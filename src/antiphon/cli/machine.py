"""The machine that is simulated: what `simulate`, `plan` and `compare --simulate` take to describe it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import typer

from antiphon.assembly.deployment_file import deployment_names, read_deployment
from antiphon.cli.groups import grouped
from antiphon.cli.options import PRESETS, finite
from antiphon.cli.shared import console, given_options, split
from antiphon.core.errors import ConfigError
from antiphon.latency.roofline import hardware_names
from antiphon.latency.shapes import ModelShape, find_shape, shape_name, shape_names

if TYPE_CHECKING:
    from antiphon.assembly.deployment import Deployment
    from antiphon.latency.profile import Profile
    from antiphon.sim.model import SimEngine
    from antiphon.sim.places import Replicas
    from antiphon.sim.run import Setup
    from antiphon.workload.spec import Workload

BASELINE, HARDWARE = "baseline", "H200"
MEASURED = "measured"
PresetName = Annotated[
    str,
    typer.Option(help=f"Which policies decide: {PRESETS}. By default --config's, else baseline."),
]
ModelName = Annotated[
    str,
    typer.Option(
        help=f"Model on a datasheet's hardware: {', '.join(shape_names())}, or a checkpoint's directory. By "
        "default --config's, else qwen3-omni-30b-a3b."
    ),
]


@dataclass(frozen=True)
class MachineOptions:
    """The machine, and how its model talks."""

    hardware: Annotated[
        str,
        typer.Option(
            help=f"A datasheet ({', '.join(hardware_names())}), or a file that `antiphon profile` wrote. By "
            "default the kind of --config's devices, else H200."
        ),
    ] = ""
    config: Annotated[
        str,
        typer.Option(
            help=f"A deployment: {', '.join(deployment_names())}, or a file. Options given beside it win."
        ),
    ] = ""
    tensor_parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Devices that share each decoder; of a datasheet 1 unless said."),
    ] = None
    replicas: Annotated[
        str,
        typer.Option(
            help="Devices of each stage, such as thinker=4,talker=4, encoders and vocoders beside them. By "
            "default as the engine was profiled; of a datasheet, one each.",
        ),
    ] = ""
    max_rows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests that run at once in a replica of a stage. As profiled; of a datasheet, 64."
        ),
    ] = None
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="KV capacity of a replica of a stage, in tokens. As profiled; of a datasheet, what fits, at "
            "most 262144.",
        ),
    ] = None
    host_kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="KV of idle sessions that each replica may keep in host memory, in tokens; 0: none. As "
            "profiled; of a datasheet, none.",
        ),
    ] = None
    link_gb_s: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            callback=finite,
            help="What copies between a device and its host reach, in GB/s each way. As profiled; of a "
            "datasheet, 0.8 of its link.",
        ),
    ] = None
    step_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a step, over all rows. As profiled; of a datasheet, 2048."),
    ] = None
    max_context_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Prompt plus reply of one response. As profiled; of a datasheet, the model's own, or 32768.",
        ),
    ] = None
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a KV block. As profiled; of a datasheet, 16.")
    ] = None
    layer_groups: Annotated[
        int | None,
        typer.Option(min=1, help="KV groups that a decoder's layers are split into. As profiled, or 1."),
    ] = None
    depth: Annotated[
        int | None,
        typer.Option(help="Steps in flight while the next is decided. As profiled; of a datasheet, 1."),
    ] = None
    decide_ms: Annotated[
        str,
        typer.Option(
            help="What a decision takes, in ms a step that it orders; or `measured`: what each takes here, "
            "so that no run is the same twice. As profiled; of a datasheet, 0.3."
        ),
    ] = ""
    reply_tokens: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1_000_000,
            callback=finite,
            help="Median tokens of a reply to which its client sets no limit.",
        ),
    ] = None
    frames_per_token: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1000,
            callback=finite,
            help="Codec frames of a token that is spoken. A frame is 80 ms of Qwen3-Omni's speech, 20 ms of "
            "Qwen2.5-Omni's, 320 ms of Ming-Flash-Omni's.",
        ),
    ] = None
    network_ms: Annotated[
        float, typer.Option(min=0, callback=finite, help="From a client to the server or back, in ms.")
    ] = 20.0


@dataclass(frozen=True)
class SimMachine:
    """What is simulated, and what it is called."""

    title: str
    costs: Profile
    engine: SimEngine
    network_s: float
    clock: Callable[[], float] | None = None
    is_deployed: bool = False

    def setup(self, workload: Workload, seed: int, patience_s: float = 60.0) -> Setup:
        """Of a run of the workload there. Raises ConfigError."""
        from antiphon.sim.links import Network
        from antiphon.sim.run import Setup

        network = Network(self.network_s)
        return Setup(workload, self.costs, seed, self.engine, network, patience_s, clock=self.clock)


def machine_of(options: MachineOptions, preset: str, model: str) -> SimMachine:
    """Raises ConfigError."""
    from antiphon.sim.sizes import Sizes

    sizes = Sizes(**{field.name: getattr(options, field.name) for field in fields(Sizes)})
    deployment = read_deployment(options.config) if options.config else None
    costs = costs_of(options, model, deployment)
    if deployment is None:
        from antiphon.sim.model import engine_of

        engine = engine_of(costs, preset or BASELINE, sizes, counted(options.replicas))
    else:
        from antiphon.sim.deployed import deployed_engine

        engine = deployed_engine(costs, deployment, preset, sizes)
    check_link(costs, engine)
    about = costs.provenance
    where = about.device if costs.datasheet is not None else options.hardware
    parts = (where, about.model, options.config, options.replicas)
    title = ", ".join(part for part in parts if part)
    clock = time.perf_counter if options.decide_ms == MEASURED else None
    network_s = options.network_ms / 1000
    return SimMachine(title, costs, talking(engine, options), network_s, clock, deployment is not None)


def varied(base: MachineOptions, words: Sequence[str]) -> MachineOptions:
    """The options, with those that stand among `words` instead. Raises ConfigError."""
    command = typer.main.get_command(_parser)
    try:
        context = command.make_context("target", list(words))
    except typer.exceptions.TyperException as error:
        raise ConfigError(getattr(error, "format_message", error.__str__)()) from None
    given = given_options(cast("typer.Context", context))
    return replace(base, **{name: context.params[name] for name in given})


_parser = typer.Typer(add_completion=False)


@_parser.command(add_help_option=False)
@grouped
def _parse(machine: MachineOptions = MachineOptions()) -> None:
    """Never run: its options are what `varied` reads."""


def costs_of(options: MachineOptions, model: str, deployment: Deployment | None) -> Profile:
    """What steps, copies and decisions take. Raises ConfigError."""
    from antiphon.latency.finding import find_costs

    hardware = options.hardware or HARDWARE
    if deployment is not None:
        refuse_beside_config(options)
        hardware = options.hardware or kind_of(deployment)
        is_file = Path(hardware).is_file()
        model = model if is_file else deployment.source(model)
    costs = find_costs(hardware, shape_of(model) if model else None, options.tensor_parallel)
    if options.decide_ms not in ("", MEASURED):
        costs = msgspec.structs.replace(costs, decide_s=milliseconds(options.decide_ms) / 1000)
    return costs if options.link_gb_s is None else costs.with_host_link(options.link_gb_s * 1e9)


def refuse_beside_config(options: MachineOptions) -> None:
    """Raises ConfigError for what a deployment says itself."""
    for name in ("replicas", "tensor_parallel"):
        if getattr(options, name):
            option = "--" + name.replace("_", "-")
            raise ConfigError(f"{option} and --config: the deployment says that of each stage; say it there")


def kind_of(deployment: Deployment) -> str:
    """The datasheet of all its devices. Raises ConfigError."""
    from antiphon.sim.deployed import kinds

    found = kinds(deployment)
    if len(found) == 1:
        return found[0]
    why = f"has devices of several kinds ({', '.join(found)})" if found else "names no kind of its devices"
    raise ConfigError(f"the deployment {why}; say --hardware, which stands for all of them then")


def announce(found: SimMachine, name: str = "") -> None:
    """Say what is assumed of the machine; `name` it where there are several."""
    for words in (assumed(found), *shortened(found)):
        console.print(f"{name}: {words}" if name else words, soft_wrap=True)


def assumed(found: SimMachine) -> str:
    """The devices, and what is where, for people."""
    from antiphon.sim.places import devices_of

    sheet, about = found.costs.datasheet, found.costs.provenance
    kind = about.device.rpartition(" x ")[2] if sheet is not None else f"{about.device} as profiled"
    where: list[str] = []
    first = 0
    for device, units in devices_of(found.engine.node.placed).items():
        ranks = 1 if sheet is None else max(sheet.shared_by(unit.stage) for unit in units)
        named = device if found.is_deployed and device else str(first)
        name = f"{first} to {first + ranks - 1}" if ranks > 1 else named
        where.append(f"{'+'.join(unit.name for unit in units)} on {name}")
        first += ranks
    return f"assumes {first} × {kind}: {', '.join(where)}"


def milliseconds(text: str) -> float:
    """Of --decide-ms. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise ConfigError(f"--decide-ms {text}: expected a number of 0 or more, or `{MEASURED}`")
    return value


def check_link(costs: Profile, engine: SimEngine) -> None:
    """Raises ConfigError for a host tier that nobody knows the link to."""
    tiered = [stage for stage, config in engine.node.ar.items() if config.host_blocks]
    if tiered and not {"host", "device"} <= costs.links.keys():
        raise ConfigError(
            f"the {tiered[0]} keeps KV on its host, and the profile does not say what copies there take; say "
            "--link-gb-s, or leave --host-kv-tokens out"
        )


def shape_of(model: str) -> ModelShape:
    """Of a model by its name, or of a checkpoint by its directory or parts. Raises ConfigError or
    CheckpointError."""
    from antiphon.cli.profile import is_checkpoint
    from antiphon.cli.profile import shape_of as shape_in

    if is_checkpoint(model):
        return shape_in(model)
    return find_shape(shape_name(model) or model)


def talking(engine: SimEngine, options: MachineOptions) -> SimEngine:
    """The engine with replies as the options have them, where they are not the profile's. Raises
    ConfigError."""
    asked = {"median_tokens": options.reply_tokens, "frames_per_token": options.frames_per_token}
    given = {name: value for name, value in asked.items() if value is not None}
    if engine.served.reading is not None and "frames_per_token" in given:
        raise ConfigError(
            "--frames-per-token: this model's voice reads the text itself, as fast as it was measured; leave "
            "it out"
        )
    if not given:
        return engine
    replies = msgspec.structs.replace(engine.replies, **given)
    return replace(engine, served=msgspec.structs.replace(engine.served, replies=replies))


def shortened(found: SimMachine) -> Iterator[str]:
    """Where the KV is too small for the context that a datasheet's engine would take."""
    from antiphon.sim.sizes import ROOMY

    config = next(iter(found.engine.node.ar.values()))
    most, usual = config.max_context_tokens, ROOMY.max_context_tokens
    is_full = most == config.num_blocks * config.block_size
    if found.costs.served is None and most is not None and usual is not None and is_full and most < usual:
        yield (
            f"the KV holds {most} tokens, so longer contexts fail (the limit of a prompt and its reply is "
            f"{usual} where the KV has room)"
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
