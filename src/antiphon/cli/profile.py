"""`antiphon profile`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from antiphon.cli.groups import EngineFlags, EngineSizes, engine_options, grouped
from antiphon.cli.shared import LoadingBar, console, fail, given_options
from antiphon.core.config import EngineOptions
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.model_source import name_of, parts_in
from antiphon.latency.models import ArModel, CodecModel, EncoderModel, SpeechModel
from antiphon.latency.profile import Profile, Provenance, StageProfile
from antiphon.latency.roofline import hardware_names
from antiphon.latency.shapes import ModelShape, find_shape, shape_names

if TYPE_CHECKING:
    from collections.abc import Iterator

ELSEWHERE = f"Instead of measuring: a device's datasheet ({', '.join(hardware_names())})."
SHAPES = (
    f"With --roofline: {', '.join(shape_names())}, or a checkpoint's directory (CHECKPOINT does as well)."
)


LINKS = {
    "host": "a copy to the host",
    "device": "a copy back to the device",
    "peer": "a copy from device to device",
    "host_memory": "copies of all devices together",
    "ranks": "a collective",
}
OF_BOTH = {"checkpoint", "out", "roofline"}
OF_A_DATASHEET = {"model", "devices"}
"""All other options are of an engine that is measured."""


@grouped
def profile(
    context: typer.Context,
    checkpoint: Annotated[
        str, typer.Argument(help="Checkpoint directory, or a hub id; not needed with --model.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Write the profile (JSON) here.")] = None,
    roofline: Annotated[str, typer.Option(help=ELSEWHERE)] = "",
    model: Annotated[str, typer.Option(help=SHAPES)] = "",
    devices: Annotated[
        int, typer.Option(min=1, help="With --roofline: devices that share each decoder.")
    ] = 1,
    engine: EngineFlags = EngineFlags(),
    sizes: EngineSizes = EngineSizes(),
    rounds: Annotated[int, typer.Option(min=1, help="How often every step is measured.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other steps held out.")] = 0,
) -> None:
    """Measure what steps and copies of a running engine take, or work it out from a datasheet."""
    try:
        refuse_idle(context, bool(roofline))
        if out is not None:
            check_folder(out)
        if model and checkpoint:
            raise ConfigError(f"CHECKPOINT {checkpoint} and --model {model}: name the one or the other")
        if roofline:
            made = from_datasheet(roofline, model or checkpoint, devices)
        elif not checkpoint:
            raise ConfigError("name a checkpoint to be measured, or --roofline DEVICE --model NAME")
        else:
            options = EngineOptions(**engine_options({**vars(engine), **vars(sizes)}))
            made = measured(checkpoint, options, rounds, seed)
        if out is not None:
            out.write_bytes(made.to_json() + b"\n")
    except (AntiphonError, OSError) as error:
        fail(error)
    report(made)
    if out is not None:
        console.print(f"wrote {out}", soft_wrap=True)


def refuse_idle(context: typer.Context, of_a_datasheet: bool) -> None:
    """Raises ConfigError for options that were typed and would do nothing."""
    given = given_options(context) - OF_BOTH
    idle = given - OF_A_DATASHEET if of_a_datasheet else given & OF_A_DATASHEET
    typed = ["--" + name.replace("_", "-") for name in context.params if name in idle]
    if typed:
        why = "describes an engine that is measured" if of_a_datasheet else "goes with --roofline"
        raise ConfigError(f"{', '.join(typed)}: that {why}; leave it out")


def check_folder(out: Path) -> None:
    """Raises ConfigError where nothing can be written: measuring takes minutes, and comes first."""
    folder = out.absolute().parent
    if out.is_dir() or not folder.is_dir():
        why = f"{folder} is not a directory" if not out.is_dir() else "it is a directory"
        raise ConfigError(f"cannot write the profile {out}: {why}; name a file with --out")


def measured(checkpoint: str, options: EngineOptions, rounds: int, seed: int) -> Profile:
    """Of an engine that is loaded for it. Raises CheckpointError, ConfigError or StageFailed."""
    import torch

    from antiphon.bench.provenance import machine
    from antiphon.runtime.profiler import load_subject
    from antiphon.runtime.profiler import profile as measure
    from antiphon.runtime.stage_times import Effort

    with LoadingBar() as bar:
        subject = load_subject(checkpoint, options, name_of(checkpoint), bar.show)
    info = subject.engine.info
    about = provenance()
    where = torch.cuda.get_device_name() if info.device.startswith("cuda") else machine()
    about = Provenance(
        about.command,
        about.commit,
        where,
        info.name,
        info.device,
        info.dtype,
        torch.get_num_threads(),
        about.when,
    )
    with console.status("measuring") as status:

        def progress(what: str, done: int, total: int) -> None:
            status.update(f"measuring: {what}" + (f", {done} of {total}" if total else ""))

        return measure(subject, about, progress, Effort(rounds=rounds, seed=seed))


def from_datasheet(device: str, model: str, devices: int) -> Profile:
    """Raises ConfigError or CheckpointError."""
    from antiphon.latency.roofline import roofline

    if not model:
        raise ConfigError(
            f"--roofline needs --model: {', '.join(shape_names())}, or a checkpoint's directory"
        )
    shape = shape_of(model) if is_checkpoint(model) else find_shape(model)
    return roofline(device, shape, provenance(), ranks=devices)


def is_checkpoint(model: str) -> bool:
    """Whether it names files at hand rather than a shape that is known."""
    return bool(parts_in(model)) or Path(model).is_dir()


def shape_of(source: str) -> ModelShape:
    """Of a checkpoint or of a cascade's parts; config.json is enough. Raises CheckpointError or
    ConfigError."""

    from antiphon.checkpoint.files import open_directory
    from antiphon.engine.family import family_of
    from antiphon.engine.load import takes_media
    from antiphon.graphs import find_graph

    config = open_directory(source, progress=lambda text: None, takes_media=takes_media).config
    family = family_of(find_graph(config["model_type"]))
    return family.read_shape(family.read_config(config), name_of(source))


def provenance() -> Provenance:
    """What is the same of every profile."""
    from antiphon.bench.provenance import command, commit, machine

    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Provenance(command=command(), commit=commit(), machine=machine(), when=when)


def report(made: Profile) -> None:
    """What the figures mean, stage by stage."""
    page, about = Console(highlight=False, width=110), made.provenance
    what = "measured on" if made.source == "measured" else "worked out for"
    page.print(f"[bold]{about.model}[/], {what} {about.device}, {about.dtype}")
    if about.notes:
        page.print(about.notes)
    for name, stage in made.stages.items():
        table = Table.grid(padding=(0, 3))
        for meaning, figure in meanings(stage):
            table.add_row("", meaning, figure)
        page.print(f"[bold]{name}[/]")
        page.print(table)
    table = Table.grid(padding=(0, 3))
    for to, link in made.links.items():
        rate = f", {1e-9 / link.beta_s:.3g} GB/s" if link.beta_s else ""
        table.add_row("", LINKS[to], f"{time(link.alpha_s)}{rate}")
    table.add_row("", "deciding, a step", time(made.decide_s))
    page.print("[bold]beside the steps[/]")
    page.print(table)


def meanings(stage: StageProfile) -> Iterator[tuple[str, str]]:
    """Figures of a stage with what they are, the residuals last."""
    match stage.model:
        case ArModel() as model:
            yield from decoder_meanings(model)
        case CodecModel() as model:
            yield "once a step", time(model.step_s)
            yield "per group of like streams", time(model.group_s)
            yield "per stream", time(model.stream_s)
            yield "per frame of speech", time(model.frame_s)
        case SpeechModel() as model:
            yield "once a step, per stream", f"{time(model.step_s)}, {time(model.stream_s)}"
            yield (
                "per phrase that begins, and per second that it sounds",
                f"{time(model.phrase_s)}, {time(model.phrase_second_s)}",
            )
            yield (
                "per window of sound, and per second of it",
                f"{time(model.window_s)}, {time(model.second_s)}",
            )
        case EncoderModel() as model:
            yield "once a step", time(model.step_s)
            yield (
                "per recording, and per token of it",
                f"{time(model.audio_s)}, {time(model.audio_token_s)}",
            )
            yield "per picture, and per token of it", f"{time(model.visual_s)}, {time(model.visual_token_s)}"
    if stage.cpu_attention is not None:
        figures = stage.cpu_attention
        yield (
            "a layer's attention on the CPU: once, per row, per 1000 tokens",
            ", ".join(time(s) for s in (figures.base_s, figures.row_s, 1000 * figures.token_s)),
        )
    if stage.residuals is not None:
        found = stage.residuals
        yield (
            f"error on {found.num_steps} steps held out: mean, P90",
            f"{100 * found.mean:.1f} %, {100 * found.p90:.1f} %",
        )


def decoder_meanings(model: ArModel) -> Iterator[tuple[str, str]]:
    layers, most = model.layers, model.dense.at[-1]
    yield (
        "once a step, per chunk of a prompt",
        f"{time(model.step_s)}, {time(layers * model.chunk_s + model.row_s)}",
    )
    for n in sorted({1, 16, 256, most}):
        yield f"dense parts (f_D) of {n} tokens", time(layers * model.dense.value(n))
    yield "attention per million pairs of a prompt's tokens (a_PA)", time(1e6 * layers * model.pair_s)
    decode = model.decode
    yield (
        "attention of rows that draw (f_DA): once, per row, per 1000 tokens of context",
        ", ".join(time(layers * s) for s in (decode.base_s, decode.row_s, 1000 * decode.token_s)),
    )
    rows = sorted({1, 16})
    yield "head and draw, of 1 and 16 rows", ", ".join(time(model.head.value(n)) for n in rows)
    if model.frame is not None:
        yield "a frame, of 1 and 16 rows", ", ".join(time(model.frame.value(n)) for n in rows)
    if model.collectives is not None:
        yield f"collectives of {most} tokens", time(layers * model.collectives.seconds(most))


def time(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"
