"""`antiphon doctor`: what this machine has, what can run on it, and what of that has been verified."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphon.assembly.deployment_file import deployment_names
from antiphon.cli.shared import console as messages
from antiphon.cli.shared import fail
from antiphon.core.errors import AntiphonError, ConfigError
from antiphon.core.model_source import name_of

if TYPE_CHECKING:
    import torch

PACKAGES = ("antiphon", "torch", "transformers", "triton", "flashinfer-python")
DTYPES = ("float32", "bfloat16", "float16", "float64")
GIB = 2**30


def doctor(
    deployment: Annotated[
        str,
        typer.Argument(help=f"A deployment to look at: {', '.join(deployment_names())}, or a file."),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="Checkpoint directory or hub id: of the deployment, by default the file's; without one, the "
            "model of which `serve`'s default sizes are explained."
        ),
    ] = "",
    workload: Annotated[
        str, typer.Option(help="Whose conversations are counted: a workload's name, or a file.")
    ] = "interactive",
) -> None:
    """Show what runs here and what of it is verified; of a deployment what runs where, memory, how many
    sessions fit, and what is wrong (exit status 1)."""
    if deployment and deployment not in deployment_names() and Path(deployment).is_dir():
        fail(ConfigError(f"{deployment} is a directory, and no deployment. A model is named by --model"))
    if deployment:
        _look_at(deployment, model, workload)
        return
    if model:
        _print_sizes(model)
        _print_changes(Path(model))
        return
    console = Console(highlight=False)
    for title, rows in (("versions", versions()), ("devices", devices()), ("attention", back_ends())):
        console.print(f"[bold]{title}[/]")
        table = Table.grid(padding=(0, 2))
        for row in rows:
            table.add_row("", *row)
        console.print(table)
    console.print("[bold]CUDA graphs[/]")
    console.print(f"  {graphs()}")


def _look_at(deployment: str, model: str, workload: str) -> None:
    from antiphon.cli.deployment_report import print_report
    from antiphon.cli.deployments import resolved, this_machine

    try:
        found, named = resolved(deployment, model, messages.print)
        print_report(found, named, workload, this_machine())
    except AntiphonError as error:
        fail(error)
    raise typer.Exit(1 if found.problems else 0)


def _print_sizes(model: str) -> None:
    """What is derived for a model where nothing is said, and from what."""
    from antiphon.cli.deployments import derived_sizes

    try:
        found = derived_sizes(model, messages.print)
    except AntiphonError as error:
        fail(error)
    console = Console(highlight=False)
    console.print(f"[bold]default sizes of {name_of(model)}[/]")
    for size, why in found.items():
        console.print(f"  {size} {why}", markup=False, soft_wrap=True)


def _print_changes(directory: Path) -> None:
    """Files that are not as they were made; exit status 1 if there are any."""
    from antiphon.checkpoint.made_files import changed_files

    try:
        found = changed_files(directory)
    except AntiphonError as error:
        fail(error)
    for sentence in found:
        messages.print(f"[red]{escape(sentence)}[/]", highlight=False, soft_wrap=True)
    if found:
        raise typer.Exit(1)


def versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def devices() -> Iterator[tuple[str, str]]:
    """Each device by the name that --device takes, with its free memory."""
    import torch

    from antiphon.engine.device import available_bytes
    from antiphon.nn.cpu import vectors

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free = available_bytes(torch.device("cuda", index))
        yield f"cuda:{index}", f"{torch.cuda.get_device_name(index)}, {free / GIB:.1f} GiB free"
    free = available_bytes(torch.device("cpu"))
    has = ", ".join((f"{torch.get_num_threads()} threads", f"{free / GIB:.1f} GiB free", *vectors()))
    yield "cpu", has
    if not torch.cuda.is_available():
        built = torch.version.cuda
        yield "cuda", "no GPU is visible" if built else "this torch is built without CUDA"


def back_ends() -> Iterator[tuple[str, str, str]]:
    """Each back-end: whether it is verified, where it can run here or why it can't, and what `auto` takes it
    for."""
    import torch

    from antiphon.nn.backends import BACKENDS, pick_backend

    present = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    places = [(device, dtype) for device in present for dtype in DTYPES]
    picked = {place: pick_backend("auto", *_typed(place)) for place in places}
    for name, backend in BACKENDS.items():
        obstacles = {place: backend.obstacle(*_typed(place)) for place in places}
        runs = [place for place in places if not obstacles[place]]
        where = f"runs {_listed(runs)}" if runs else "; ".join(dict.fromkeys(obstacles.values()))
        auto = _listed([place for place in places if picked[place] == name])
        if backend.rounds and runs:
            auto = "weights stored in bfloat16, unless --dtype is given"
        state = "verified" if backend.verified else "unverified"
        yield name, state, where + (f"; auto takes it for {auto}" if auto else "")


def graphs() -> str:
    import torch

    state = "unverified (have not run on an accelerator); --cuda-graphs asks for them"
    return state if torch.cuda.is_available() else f"cannot run here, there is no CUDA; {state}"


def _typed(place: tuple[str, str]) -> tuple[torch.device, torch.dtype]:
    import torch

    return torch.device(place[0]), getattr(torch, place[1])


def _listed(places: list[tuple[str, str]]) -> str:
    """Dtypes device by device."""
    dtypes: dict[str, list[str]] = {}
    for device, dtype in places:
        dtypes.setdefault(device, []).append(dtype)
    return "; ".join(f"{', '.join(names)} on {device}" for device, names in dtypes.items())
