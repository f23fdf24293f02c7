"""A checkpoint of parts, each a checkpoint of its own: a directory whose config.json names them, or a source
that does (`core.model_source`).

Each part is a directory (of a config.json, in that directory or elsewhere) or a hub id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.checkpoint.quantisation import check_scheme
from antiphon.checkpoint.side_files import (
    check_present,
    check_side_files,
    has,
    read_json,
    read_optional_json,
)
from antiphon.checkpoint.source import find_directory
from antiphon.core.errors import CheckpointError
from antiphon.core.model_source import PARTS, VOICE, WRITER, WRITES_DOWN, check_parts, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MODEL_TYPE = "cascade"
"""What the config.json of such a directory says it is."""
KINDS = {
    WRITES_DOWN: ("whisper", "Whisper (WhisperForConditionalGeneration)"),
    VOICE: ("vits", "VITS (VitsModel)"),
}
"""Model types of the parts that are of one kind, and what people call it. The thinker's are the families of
text models.
"""


PHONEME_KEYS = ("network", "dictionary", "second_dictionary")
"""What phonemes.json holds."""


def parts_of(
    path: Path, config: Mapping[str, Any], progress: Callable[[str], None] | None = None
) -> dict[str, Path]:
    """The parts' directories by name; none where the checkpoint is whole. Raises CheckpointError."""
    if config.get("model_type") != MODEL_TYPE:
        return {}
    found: dict[str, Path] = {}
    for part in PARTS:
        named = config.get(part)
        if not isinstance(named, str) or not named:
            raise CheckpointError(
                f"{path / 'config.json'}: {part!r} must name a directory, a GGUF or a hub id"
            )
        inside = path / named
        try:
            found[part] = _directory(part, str(inside) if inside.exists() else named, progress)
        except CheckpointError as error:
            if inside.exists():
                raise
            raise CheckpointError(
                f"{error}. {path / 'config.json'} names it; it was looked for at {inside} first"
            ) from error
    return found


def check_whole(path: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a checkpoint that is served as a part of a cascade only."""
    for part, (model_type, kind) in KINDS.items():
        if config.get("model_type") == model_type:
            parent = path.absolute().parent
            named = source_of(dict.fromkeys(PARTS, "…"))
            advice = f"Serve the cascade: {parent}" if _is_cascade(parent) else f"Name all parts: {named}"
            raise CheckpointError(
                f"{path} is {kind}, the {part} of a cascade, and is not served alone. {advice}"
            )


def _is_cascade(path: Path) -> bool:
    """Whether a directory's config.json says so; False where there is none that can be read."""
    try:
        return read_json(path / "config.json", "").get("model_type") == MODEL_TYPE
    except CheckpointError:
        return False


def find_parts(named: Mapping[str, str], progress: Callable[[str], None] | None = None) -> dict[str, Path]:
    """The parts' directories by name. Raises ConfigError for a part that is not named, CheckpointError for
    one that is not there."""
    check_parts(named)
    return {part: _directory(part, named[part], progress) for part in PARTS}


def whole_config(
    config: Mapping[str, Any],
    parts: Mapping[str, Path],
    takes_media: Callable[[Path, Mapping[str, Any]], bool],
) -> dict[str, Any]:
    """A cascade's config.json with what each part's says in the place of its name, their
    generation_config.json under "generation" and their directories, as text, under "directories".

    `takes_media` as in `open_checkpoint`, for the thinker. Raises CheckpointError.
    """
    made: dict[str, Any] = {**config, "generation": {}}
    made["directories"] = {part: str(directory) for part, directory in parts.items()}
    for part, directory in parts.items():
        made[part] = read_json(directory / "config.json", f"the {part} is not a model checkpoint")
        _check_kind(part, directory, made[part])
    takes_media(parts[WRITER], made[WRITER])
    check_scheme(parts[WRITER] / "config.json", made[WRITER], takes_media=False)
    for part, directory in parts.items():
        generation = directory / "generation_config.json"
        made["generation"][part] = (
            read_json(generation, "nothing says how a transcript begins, and what is none")
            if part == WRITES_DOWN
            else read_optional_json(generation)
        )
    _check_side_files(parts)
    return made


def _check_side_files(parts: Mapping[str, Path]) -> None:
    """Raise CheckpointError unless each part has the files that its stages read beside the weights."""
    hears, writes = parts[WRITES_DOWN], parts[WRITER]
    check_present(
        hears,
        {
            "tokenizer.json": has(hears, "tokenizer.json"),
            "preprocessor_config.json": has(hears, "preprocessor_config.json"),
        },
    )
    check_side_files(writes, takes_media=False)
    check_present(writes, {"tokenizer.json": has(writes, "tokenizer.json")})
    _check_symbols(parts[VOICE])


def _check_symbols(voice: Path) -> None:
    """Raise CheckpointError unless what the voice reads can be made of text."""
    if has(voice, "phonemes.json"):
        _check_phonemes(voice)
        return
    check_present(voice, {name: has(voice, name) for name in ("vocab.json", "tokenizer_config.json")})
    config = read_json(voice / "tokenizer_config.json", "")
    for key, unsaid, symbols in (("phonemize", True, "phonemes"), ("is_uroman", False, "romanised text")):
        if config.get(key, unsaid):  # where a file does not say, as transformers has it
            raise CheckpointError(
                f"{voice / 'tokenizer_config.json'}: {key} is true, and nothing here makes {symbols} of text."
                " Use a voice of characters, such as facebook/mms-tts-eng"
            )


def _check_phonemes(voice: Path) -> None:
    """Raise CheckpointError unless the dictionaries can be read, and what stands beside them is there."""
    check_present(voice, {name: has(voice, name) for name in ("vocab.json", "phonemes.safetensors")})
    found = read_json(voice / "phonemes.json", "")
    lacking = [key for key in PHONEME_KEYS if not isinstance(found.get(key), dict)]
    if lacking:
        raise CheckpointError(f"{voice / 'phonemes.json'} has no {', '.join(lacking)}. Fetch the file again")


def _directory(part: str, named: str, progress: Callable[[str], None] | None) -> Path:
    try:
        return find_directory(named, progress)
    except CheckpointError as error:
        raise CheckpointError(f"{part}: {error}") from error


def _check_kind(part: str, directory: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a part that is, by its model type, what another one should be."""
    found = config.get("model_type")
    expected = KINDS.get(part)
    taken = {MODEL_TYPE, *(kind for kind, _ in KINDS.values())}
    if found == expected[0] if expected else found not in taken:
        return
    needed = expected[1] if expected else "a text model (Llama, Qwen2 or Qwen3)"
    others = [other for other, (kind, _) in KINDS.items() if kind == found]
    swapped = f"; it could be the {others[0]}" if others else ""
    raise CheckpointError(
        f"{part}: {found!r} is not served as one ({directory}){swapped}. The {part} must be {needed}"
    )
