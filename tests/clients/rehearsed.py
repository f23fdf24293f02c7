"""A checkpoint that says the same in every reply, and calls a forced tool with `{}`: so its clients can be
asked to hear a whole reply, to interrupt one, and to answer a call.

The layers of the demo checkpoint's thinker add nothing any more, so what follows depends on the last token
only; the head is written by hand.
"""

from __future__ import annotations

import json
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from antiphon.checkpoint.demo import make_demo

NUM_WORDS = 150
"""Twelve seconds of voice: still being made when somebody speaks at once, still playing when they wait."""
SILENCED = ("self_attn.o_proj.weight", "down_proj", "down_proj.weight")
LAYERS, EMBEDDING = "thinker.model.layers.", "thinker.model.embed_tokens.weight"
HEAD, NORM = "thinker.lm_head.weight", "thinker.model.norm.weight"
END = "<|im_end|>"


def rehearsed(directory: Path) -> Path:
    """A few seconds: the thinker is not trained, since nothing of it is kept."""
    with patch("antiphon.checkpoint.demo.train_thinker"):
        make_demo(directory, size="small")
    generation = json.loads((directory / "generation_config.json").read_text())
    generation |= {"do_sample": False, "talker_do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    shards = {path: load_file(path) for path in directory.glob("*.safetensors")}
    weights = {name: tensor for shard in shards.values() for name, tensor in shard.items()}
    for name, tensor in weights.items():
        if name.startswith(LAYERS) and name.endswith(SILENCED):
            tensor.zero_()
    _write_head(weights, _followers(Tokenizer.from_file(str(directory / "tokenizer.json"))))
    for path, shard in shards.items():
        save_file(shard, path, metadata={"format": "pt"})
    return directory


def _followers(tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """(token, the one after it). A reply follows a line break, a forced call's arguments a colon."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=itemgetter(1))
    words = [token for text, token in vocabulary if text[0] == "Ġ" and text[1:].isalpha()][:NUM_WORDS]
    end, line, colon, left, right = (_id(tokenizer, text) for text in (END, "Ċ", ":", "{", "}"))
    said, called = [line, *words, end], [colon, left, right, end]
    return [pair for chain in (said, called) for pair in pairwise(chain)]


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None, f"the demo tokenizer has no token {token!r}"
    return found


def _write_head(weights: dict[str, torch.Tensor], followers: list[tuple[int, int]]) -> None:
    """Each token's direction points at its follower."""
    weights[HEAD].zero_()
    for token, follower in followers:
        state = weights[EMBEDDING][token] * weights[NORM]
        weights[HEAD][follower] += state / state.norm()
