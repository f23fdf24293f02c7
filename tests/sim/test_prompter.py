"""Simulated prompts: as long as a model's own, and the same again where they begin alike."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    TextPart,
    TokensPart,
    ToolCallPart,
    ToolOutputPart,
    VideoPart,
)
from antiphon.core.facts import PromptReady
from antiphon.core.plans import RenderPrompt
from antiphon.graphs import find_graph
from antiphon.models.qwen_media.preprocess_shapes import num_audio_tokens
from antiphon.sim.prompter import SimPrompter

QWEN3_OMNI = find_graph("qwen3_omni_moe")


def said(text: str, name: str = "q", role: str = "user") -> Item:
    return Item(name, role, (TextPart(text),))  # type: ignore[arg-type]


def spoken(seconds: float, key: int = 5, name: str = "q") -> Item:
    return Item(name, "user", (AudioPart(bytes(round(seconds * 16000) * 4), key),))


def prompts(*items: Item, request: int = 1) -> PromptReady:
    return SimPrompter(QWEN3_OMNI).render(RenderPrompt(request, items, True))


def test_a_second_of_audio_is_thirteen_tokens() -> None:
    bare = prompts(Item("q", "user", ())).prompts["thinker"]
    for seconds, expected in ((1.0, 13), (8.0, 104), (0.01, num_audio_tokens(1))):
        prompt = prompts(spoken(seconds)).prompts["thinker"]
        assert [span.length for span in prompt.spans] == [expected]
        assert len(prompt.token_ids) == len(prompt.keys) == len(bare.token_ids) + expected + 2


def test_pictures_and_videos_take_what_their_size_asks() -> None:
    picture = ImagePart(b"", 320, 256, 3)
    video = VideoPart(b"", 448, 448, 8, 2.0, bytes(4 * 16000), 4)
    spans = prompts(Item("q", "user", (picture, video))).prompts["thinker"].spans
    assert [(span.kind, span.length) for span in spans] == [("image", 10 * 8), ("video", 4 * 14 * 14 + 13)]
    assert spans[1].audio_length == 13


def test_the_next_prompt_begins_with_this_one_and_its_reply() -> None:
    question, other = spoken(1.0), said("and what then", "q2")
    answer = Item("a", "assistant", (TokensPart((1 << 20, (1 << 20) + 1)),))
    first, second = prompts(question), prompts(question, answer, other, request=2)
    for stage, kept in (("thinker", None), ("talker", -9)):
        before, after = first.prompts[stage].keys, second.prompts[stage].keys
        assert np.array_equal(after[: len(before[:kept])], before[:kept])
    assert second.prompts["talker"].num_stable == len(second.prompts["talker"].keys) - 9
    assert not set(first.prompts["talker"].keys[-9:].tolist()) & set(second.prompts["talker"].keys.tolist())


def test_the_talker_is_shown_the_users_turns_and_the_hidden_states_of_their_media() -> None:
    system, tool = said("be kind", "s", "system"), ToolOutputPart("c", "it is noon")
    call = Item("a", "assistant", (ToolCallPart("c", "clock", "{}"),))
    made = prompts(system, spoken(1.0), call, Item("t", "tool", (tool,)))
    thinker, talker = made.prompts["thinker"], made.prompts["talker"]
    (span,), (shown,) = thinker.spans, talker.spans
    assert talker.gather.tolist() == list(range(span.start, span.start + span.length))
    assert len(talker.keys) == 3 + 1 + 13 + 1 + 2 + 9
    assert shown.start == 4
    other = prompts(said("be cruel", "s", "system"), spoken(1.0)).prompts["talker"]
    media = slice(shown.start, shown.start + shown.length)
    assert not np.array_equal(other.keys[media], talker.keys[media]), "what stands before media counts"


def test_who_says_a_text_gets_its_tokens() -> None:
    made = SimPrompter(QWEN3_OMNI).render(RenderPrompt(1, (), True, say="good morning to you"))
    assert made.reply is not None
    assert len(made.reply) == round(4 * 1.3)
    assert "talker" not in SimPrompter(QWEN3_OMNI, has_voice=False).render(RenderPrompt(1, (), True)).prompts


def test_known_texts_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.sim.prompter.KEPT_TEXTS", 2)
    prompter = SimPrompter(QWEN3_OMNI)
    orders = [RenderPrompt(1, (said(f"text {number}"),), False) for number in (0, 1, 2, 0)]
    first, _, _, again = [prompter.render(order).prompts["thinker"].keys.tolist() for order in orders]
    assert first == again
