"""Teaches a small thinker the demo corpus, so that its replies are readable and end by themselves.

Trains the text model and its head in place, on the CPU, for a fixed number of steps. Prompts are questions
of the corpus, random tokens or random vectors (in place of encoded audio), so that whatever people send, a
reply comes. Knows nothing of files, of the talker or of the vocoder.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from antiphon.checkpoint.demo_corpus import SYSTEM_PROMPT, make_exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenizers import Tokenizer

NUM_STEPS = 90
BATCH_SIZE = 6
LONG_EVERY, LONG_BATCH_SIZE = 4, 2
"""Every so many steps a batch of few rows with long audio, so that long conversations do not derail
replies."""
SHORT_AUDIO, LONG_AUDIO = (8, 60), (200, 900)
"""Fewest and most audio tokens in a prompt."""
PEAK_LEARNING_RATE = 3e-3
NUM_WARMUP_STEPS = 10
AUDIO_RMS = 0.3
"""Scale of the vectors that stand for audio, and of token embeddings before training."""
CONSTANT_FEATURE = 0
CONSTANT_SIZE = 1.5
"""An embedding feature that is the same for all tokens before training: positions alone can be attended
to."""
LOOK_BACK_LAYERS, LOOK_BACK_HEADS, LOOK_BACK_PAIRS = 2, 4, 12
LOOK_BACK_SIZE = 1.6
ATTENTION_GAIN = 1.5
"""Start of the query and key norms: sharp enough that hundreds of far tokens do not drown the near ones."""
TALKER_ONLY_FEATURE = 1
"""Embedding feature that stays zero for every token the thinker reads; the talker's end marker lives
there."""
PROMPT_KINDS = ("text", "text", "noise", "audio")
NO_LOSS = -100


@dataclass(frozen=True, slots=True)
class Lesson:
    """A batch. `tokens` and `targets` are int64 (rows, length); `media` is bool, True where a vector
    stands."""

    tokens: torch.Tensor
    targets: torch.Tensor
    media: torch.Tensor


class Teacher:
    """Draws lessons: one or two exchanges a row, loss on the replies only."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._audio_pad = tokenizer.token_to_id("<|audio_pad|>")
        self._num_words = tokenizer.get_vocab_size(with_added_tokens=False)

    def draw(self, step: int) -> Lesson:
        if step % LONG_EVERY == LONG_EVERY - 1:
            rows = [self._draw_row(("audio",), LONG_AUDIO) for _ in range(LONG_BATCH_SIZE)]
        else:
            rows = [self._draw_row(PROMPT_KINDS, SHORT_AUDIO) for _ in range(BATCH_SIZE)]
        return self._pack(rows)

    def _pack(self, rows: list[tuple[list[int], list[int]]]) -> Lesson:
        length = max(len(tokens) for tokens, _ in rows)
        tokens = torch.tensor([row + [0] * (length - len(row)) for row, _ in rows])
        targets = torch.tensor([row + [NO_LOSS] * (length - len(row)) for _, row in rows])
        return Lesson(tokens, targets, tokens == self._audio_pad)

    def _draw_row(self, kinds: tuple[str, ...], num_audio: tuple[int, int]) -> tuple[list[int], list[int]]:
        tokens = self._encode(f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n") if self._flip() else []
        targets = [NO_LOSS] * len(tokens)
        for _ in range(self._random.choice((1, 1, 2))):
            question, reply = make_exchange(self._random)
            prompt = self._encode("<|im_start|>user\n") + self._draw_prompt(question, kinds, num_audio)
            prompt += self._encode("<|im_end|>\n<|im_start|>assistant\n")
            answer = self._encode(reply + "<|im_end|>")
            tokens += prompt + answer + self._encode("\n")
            targets += [NO_LOSS] * (len(prompt) - 1) + answer + [NO_LOSS] * 2
        return tokens, targets

    def _draw_prompt(self, question: str, kinds: tuple[str, ...], num_audio: tuple[int, int]) -> list[int]:
        kind = self._random.choice(kinds)
        if kind == "text":
            return self._encode(question)
        if kind == "noise":
            return [self._random.randrange(self._num_words) for _ in range(self._random.randint(1, 30))]
        pads = "<|audio_pad|>" * self._random.randint(*num_audio)
        return self._encode(f"<|audio_start|>{pads}<|audio_end|>")

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _flip(self) -> bool:
        return self._random.random() < 0.5


def train_thinker(
    thinker: Any,
    tokenizer: Tokenizer,
    seed: int,
    progress: Callable[[str], None] | None = None,
) -> float:
    """Train `thinker` (a transformers Qwen3-Omni thinker, float32) in place; returns the last loss in
    nats."""
    text_model, head = thinker.model.language_model, thinker.lm_head
    start_looking_back(text_model)
    parameters = [*text_model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    teacher = Teacher(tokenizer, seed)
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * _schedule(step)
        loss = _loss(text_model, head, teacher.draw(step), generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        _clear_talker_feature(text_model)
        if progress is not None and (step + 1) % 20 == 0:
            progress(f"teaching the thinker: step {step + 1} of {NUM_STEPS}, loss {loss.item():.2f}")
    return loss.item()


@torch.no_grad()
def start_looking_back(text_model: Any) -> None:
    """Give the first heads of the first layers a leaning towards the tokens 1, 2, 3 and 4 positions back.

    Without it the layers stay mere noise around a bigram table for several times the steps we can afford.
    The fast rotary pairs of the key hold a constant vector, those of the query the same vector turned back
    by `distance`.
    """
    table = text_model.embed_tokens.weight
    table[:, CONSTANT_FEATURE] = CONSTANT_SIZE
    head_dim = text_model.config.head_dim
    turns = text_model.rotary_emb.inv_freq[:LOOK_BACK_PAIRS]
    fast = torch.arange(LOOK_BACK_PAIRS)
    for layer in text_model.layers[:LOOK_BACK_LAYERS]:
        query, key = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
        layer.self_attn.q_norm.weight.mul_(ATTENTION_GAIN)
        layer.self_attn.k_norm.weight.mul_(ATTENTION_GAIN)
        key[fast, CONSTANT_FEATURE] += LOOK_BACK_SIZE
        for head in range(LOOK_BACK_HEADS):
            angle, rows = -turns * (head + 1), head * head_dim + fast
            query[rows, CONSTANT_FEATURE] += LOOK_BACK_SIZE * angle.cos()
            query[rows + head_dim // 2, CONSTANT_FEATURE] += LOOK_BACK_SIZE * angle.sin()


def _loss(text_model: Any, head: Any, lesson: Lesson, generator: torch.Generator) -> torch.Tensor:
    embeds = text_model.embed_tokens(lesson.tokens)
    rows, _, width = embeds.shape
    # Neighbouring audio vectors resemble each other, so part of the noise is shared by the row.
    noise = torch.randn(embeds.shape, generator=generator) + torch.randn(
        (rows, 1, width), generator=generator
    )
    noise = noise * AUDIO_RMS / math.sqrt(2)
    embeds = torch.where(lesson.media[..., None], noise, embeds)
    hidden = text_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    wanted = lesson.targets != NO_LOSS
    return functional.cross_entropy(head(hidden[wanted]), lesson.targets[wanted])


@torch.no_grad()
def _clear_talker_feature(text_model: Any) -> None:
    text_model.embed_tokens.weight[:, TALKER_ONLY_FEATURE] = 0.0


def _schedule(step: int) -> float:
    """Linear warm-up, then half a cosine down to 5 %."""
    if step < NUM_WARMUP_STEPS:
        return (step + 1) / NUM_WARMUP_STEPS
    done = (step - NUM_WARMUP_STEPS) / (NUM_STEPS - NUM_WARMUP_STEPS)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def scale_towers(thinker: Any, generator: torch.Generator) -> None:
    """Scale the audio and vision outputs to what the thinker met in training: rms AUDIO_RMS, on unit-rms
    inputs."""
    tower, visual = thinker.model.audio_tower, thinker.model.visual
    for last in (tower.proj2, *(m.mlp[-1] for m in (visual.merger, *visual.merger_list))):
        inputs = torch.randn((256, last.in_features), generator=generator).relu()
        gain = AUDIO_RMS / last(inputs).square().mean().sqrt()
        last.weight.mul_(gain)
        last.bias.mul_(gain)
