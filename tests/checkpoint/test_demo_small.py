"""The talking demo: what it is taught, and (slow) that it has learned it."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.demo_config import SIZES
from antiphon.checkpoint.demo_corpus import CLOSERS, OPENERS, TOPICS, make_exchange
from antiphon.checkpoint.demo_tokenizer import train_tokenizer
from antiphon.checkpoint.demo_training import LONG_AUDIO, LONG_EVERY, NO_LOSS, Teacher
from antiphon.checkpoint.files import open_checkpoint

if TYPE_CHECKING:
    from pathlib import Path


def test_sentences_end_as_their_place_in_a_reply_asks() -> None:
    assert all(sentence.endswith("!") for sentence in OPENERS)
    assert all(sentence.endswith("?") for sentence in CLOSERS)
    assert all(sentence.endswith(".") for topic in TOPICS for sentence in topic.middles)


def test_exchanges_answer_their_question() -> None:
    rng = random.Random(0)
    for _ in range(50):
        question, reply = make_exchange(rng)
        (topic,) = [topic for topic in TOPICS if question in topic.questions]
        assert reply.startswith(OPENERS)
        assert reply.endswith(CLOSERS)
        assert any(sentence in reply for sentence in topic.middles)


def test_lessons_are_the_same_for_the_same_seed() -> None:
    tokenizer = train_tokenizer()
    first, second = Teacher(tokenizer, 3), Teacher(tokenizer, 3)
    assert all(torch.equal(first.draw(step).tokens, second.draw(step).tokens) for step in range(3))


def test_loss_falls_on_replies_only() -> None:
    tokenizer = train_tokenizer()
    lesson = Teacher(tokenizer, 0).draw(0)
    row = lesson.targets[0]
    taught = tokenizer.decode(row[row != NO_LOSS].tolist(), skip_special_tokens=False)
    assert taught.startswith(OPENERS)
    assert taught.endswith("?<|im_end|>")
    # A target is the token after the one it stands under.
    places = (row != NO_LOSS).nonzero().flatten()
    assert torch.equal(lesson.tokens[0, places + 1], row[places])


def test_long_lessons_hold_long_audio() -> None:
    lesson = Teacher(train_tokenizer(), 0).draw(LONG_EVERY - 1)
    assert lesson.media.sum(1).min() >= LONG_AUDIO[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(tmp_path_factory.mktemp("checkpoint") / "small", size="small")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_small_is_sharded(small: Path) -> None:
    checkpoint = open_checkpoint(str(small))
    shards = {info.shard for info in checkpoint.tensors.values()}
    assert len(shards) > 1
    assert all((small / shard).stat().st_size <= SIZES["small"].shard_bytes * 1.01 for shard in shards)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("do_sample", [True, False])
def test_replies_are_sentences_that_end_by_themselves(small: Path, do_sample: bool) -> None:
    from transformers import AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(small, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(small)
    torch.manual_seed(0)
    replies = [reply(model, tokenizer, small, topic.questions[0], do_sample) for topic in TOPICS]
    assert all(text.startswith(OPENERS) and text.endswith("?<|im_end|>") for text in replies)
    assert all(15 < len(tokenizer.encode(text)) < 160 for text in replies)


def reply(model: Any, tokenizer: Any, directory: Path, question: str, do_sample: bool) -> str:
    defaults = json.loads((directory / "generation_config.json").read_text())
    sampling = ("temperature", "top_k", "top_p") if do_sample else ()
    kept = {name: defaults[name] for name in ("max_new_tokens", "eos_token_id", "pad_token_id", *sampling)}
    ids = torch.tensor([tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")])
    tokens = model.thinker.generate(ids, attention_mask=torch.ones_like(ids), do_sample=do_sample, **kept)
    return tokenizer.decode(tokens[0, ids.shape[1] :])
