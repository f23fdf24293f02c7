"""A byte-level BPE tokenizer in the family's format, trained on the demo corpus in a fraction of a second.

Writes tokenizer.json, tokenizer_config.json, vocab.json and merges.txt. Any text can be encoded (all 256
bytes are there); words of the corpus are one token each. Knows nothing of the model's sizes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from antiphon.checkpoint.demo_corpus import all_sentences

if TYPE_CHECKING:
    from pathlib import Path

MAX_BPE_TOKENS = 2000

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

ROLES = ("system", "user", "assistant")
"""Must be one token each: the talker finds turns by the single token after <|im_start|>."""

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
)

TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Tokens of their own that are text all the same: a decoded reply shows them."""

NAMED_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}


def train_tokenizer() -> Tokenizer:
    """The demo tokenizer, special tokens behind the learned ones. The same on every call."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_BPE_TOKENS,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # Repeated, so that every word of the corpus passes min_frequency and the roles merge first.
    tokenizer.train_from_iterator(all_sentences() * 2 + list(ROLES) * 500, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TOOL_TOKENS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the four files the family's checkpoints carry."""
    tokenizer.save(str(directory / "tokenizer.json"))
    model = json.loads(tokenizer.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    (directory / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    merges = "".join(" ".join(pair) + "\n" for pair in model["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    config = json.dumps(_tokenizer_config(tokenizer), indent=2)
    (directory / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def rename_tokens(directory: Path, names: dict[str, str]) -> None:
    """Give special tokens other names in every file that writes them."""
    for file in directory.iterdir():
        text = file.read_text(encoding="utf-8")
        for old, new in names.items():
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Ids of the special tokens and of the three role words, by their text."""
    return {token: token_id(tokenizer, token) for token in SPECIAL_TOKENS + ROLES}


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The single id of `token`, which must be in the vocabulary."""
    found = tokenizer.token_to_id(token)
    assert found is not None, f"{token!r} is not one token of the demo tokenizer"
    return found


def _tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    named = set(NAMED_TOKENS.values()) | {"<|endoftext|>", "<|im_end|>"}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token_id(tokenizer, t)): _added(t) for t in SPECIAL_TOKENS + TOOL_TOKENS
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "extra_special_tokens": [token for token in SPECIAL_TOKENS if token not in named],
        "model_max_length": 8192,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "split_special_tokens": False,
        "unk_token": "<|endoftext|>",
        **NAMED_TOKENS,
    }


def _added(token: str) -> dict[str, object]:
    return {
        "content": token,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": token in SPECIAL_TOKENS,
    }
