"""Makes a small, complete checkpoint out of nothing: for tests, and for a server without a GPU.

Of Qwen3-Omni: `tiny` has random weights in which every branch matters; exactness tests compare against it.
`medium` is the same at 60 times the work, for benchmarks. `small` has learned to reply in short English, and
its voice is a murmur that ends soon after the text does. Of all others every size is random. All load
unchanged in transformers. Each family's exactness is tested on a checkpoint of its own, and nothing is
fetched for a test: so each has its config, tokenizer, processor files and weights here. This room makes and
opens files; it must not know the engine or the model code that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from antiphon.checkpoint.demo_cascade import write_cascade
from antiphon.checkpoint.demo_config import SIZES, generation_config, model_config
from antiphon.checkpoint.demo_processor import CHAT_TEMPLATE, write_processor
from antiphon.checkpoint.demo_qwen25 import QWEN25_SIZES, RENAMED, qwen25_config, qwen25_generation_config
from antiphon.checkpoint.demo_qwen25_weights import write_qwen25_weights
from antiphon.checkpoint.demo_talker import wire_codec_end
from antiphon.checkpoint.demo_text import (
    TEXT_MODELS,
    TEXT_SIZES,
    text_config,
    text_generation_config,
    text_shapes,
    write_tensors,
)
from antiphon.checkpoint.demo_tokenizer import rename_tokens, special_ids, train_tokenizer, write_tokenizer
from antiphon.checkpoint.demo_training import TALKER_ONLY_FEATURE, scale_towers, train_thinker
from antiphon.checkpoint.demo_weights import DTYPES, fill_weights, generator_for, store_as, write_weights
from antiphon.checkpoint.quiet import quiet
from antiphon.checkpoint.side_files import write_json
from antiphon.checkpoint.whole import made_whole, say_nothing
from antiphon.core.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tokenizers import Tokenizer

    Shapes = Callable[[dict[str, Any]], Iterable[tuple[str, tuple[int, ...]]]]
    Write = Callable[[Path, "Making"], None]

MODELS: dict[str, Any] = {
    "qwen3-omni": SIZES,
    "qwen2_5_omni": QWEN25_SIZES,
    "cascade": {"tiny": TEXT_SIZES["tiny"]},
    **dict.fromkeys(TEXT_MODELS, TEXT_SIZES),
}
"""Families, and the sizes that each comes in."""
VOCAB_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class Making:
    """How a demo is made; `dtype` is that of the stored weights."""

    size: str
    seed: int
    dtype: str
    say: Callable[[str], None]


def make_demo(
    directory: Path,
    *,
    model: str = "qwen3-omni",
    size: str = "tiny",
    seed: int = 0,
    dtype: str = DTYPES[0],
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Make a demo checkpoint in `directory` and return that path; a few seconds to a minute.

    The same arguments give the same bytes on one machine. An interrupted making leaves nothing at
    `directory`. Raises CheckpointError for an unknown model, size or dtype and when `directory` exists and is
    not empty.
    """
    _check_choice("model", model, tuple(MODELS))
    _check_choice("size", size, tuple(MODELS[model]))
    others = {"qwen3-omni": _write_all, "qwen2_5_omni": _write_qwen25, "cascade": _write_cascade}
    write = others.get(model) or partial(_write_text, TEXT_MODELS.get(model, {}), text_shapes)
    return _make(directory, write, Making(size, seed, dtype, progress or say_nothing))


def make_text_demo(
    directory: Path,
    own: Mapping[str, Any],
    shapes: Shapes,
    *,
    size: str = "tiny",
    seed: int = 0,
    dtype: str = DTYPES[0],
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Make a demo checkpoint of a text model of a family beyond `MODELS`. As `make_demo`.

    own     what its config.json has beside, or instead of, the usual (`demo_text.common_config`)
    shapes  from a config.json to names and shapes of all tensors
    """
    _check_choice("size", size, tuple(TEXT_SIZES))
    making = Making(size, seed, dtype, progress or say_nothing)
    return _make(directory, partial(_write_text, own, shapes), making)


def _make(directory: Path, write: Write, making: Making) -> Path:
    _check_choice("dtype", making.dtype, DTYPES)
    directory = Path(directory)
    with made_whole(directory) as unfinished:
        write(unfinished, making)
        if making.dtype != DTYPES[0]:
            for config in sorted(unfinished.rglob("config.json")):
                store_as(config.parent, making.dtype)
    return directory


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CheckpointError(f"there is no demo {what} {value!r}; choose one of {', '.join(allowed)}")


def _write_all(directory: Path, making: Making) -> None:
    size = SIZES[making.size]
    making.say("training the tokenizer")
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, directory)
    write_processor(directory)
    ids, vocab_size = special_ids(tokenizer), _vocab_size(tokenizer)
    config = model_config(size, ids, vocab_size)
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation_config(ids, making.size))
    making.say("setting the weights")
    model = _build(config, making.seed)
    _set_weights(model, tokenizer, making)
    making.say("writing the weights")
    write_weights(model, directory, size.shard_bytes)


def _write_qwen25(directory: Path, making: Making) -> None:
    size = QWEN25_SIZES[making.size]
    making.say("training the tokenizer")
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, directory)
    write_processor(directory, "Qwen2_5OmniProcessor", patch_size=14)
    rename_tokens(directory, RENAMED)
    ids = special_ids(tokenizer)
    config = qwen25_config(size, ids, _vocab_size(tokenizer))
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", qwen25_generation_config(ids))
    making.say("setting and writing the weights")
    write_qwen25_weights(config, ids, making.seed, directory, size.shard_bytes)


def _write_text(own: Mapping[str, Any], shapes: Shapes, directory: Path, making: Making) -> None:
    making.say("training the tokenizer")
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, directory)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    ids = special_ids(tokenizer)
    config = text_config(own, TEXT_SIZES[making.size], ids, _vocab_size(tokenizer))
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", text_generation_config(ids))
    making.say("writing the weights")
    write_tensors(shapes(config), making.seed, directory, is_tied=config["tie_word_embeddings"])


def _write_cascade(directory: Path, making: Making) -> None:
    """The thinker is a Llama."""
    (directory / "thinker").mkdir()
    _write_text(TEXT_MODELS["llama"], text_shapes, directory / "thinker", making)
    write_cascade(directory, making.seed)


def _vocab_size(tokenizer: Tokenizer) -> int:
    return -(-tokenizer.get_vocab_size() // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _build(config: dict[str, Any], seed: int) -> Any:
    # Imported here: it takes seconds, and opening a checkpoint does not need it.
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with quiet():
            return Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**config)).float().eval()


def _set_weights(model: Any, tokenizer: Tokenizer, making: Making) -> None:
    talks, seed = making.size == "small", making.seed
    fill_weights(model, seed, plain=not talks)
    if talks:
        train_thinker(model.thinker, tokenizer, seed, making.say)
        scale_towers(model.thinker, generator_for("towers", seed))
        wire_codec_end(model, TALKER_ONLY_FEATURE, generator_for("codec end", seed))
