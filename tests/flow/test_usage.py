"""Tokens are told apart by their spans."""

from __future__ import annotations

from antiphon.core.conversation import Item, TextPart
from antiphon.core.facts import NO_INTS, PromptReady, ResponseRequested, Span, StagePrompt
from antiphon.core.plans import RenderPrompt, Usage, ints
from antiphon.core.sampling import Sampling
from antiphon.flow.response import ResponseState
from antiphon.stage.requests import ArRequest
from fakes import toy


def test_usage_counts_text_audio_and_images() -> None:
    items = (Item("u", "user", (TextPart("one two"), toy.tone(1), toy.picture(1), toy.tone(2))),)
    response = ResponseState(1, ResponseRequested("s", "r", "i"), items, 0, "root")
    assert response.usage("thinker") == Usage(), "nothing is known before the prompt is"
    ready = toy.ToyPrompter().render(RenderPrompt(1, items, True))
    assert isinstance(ready, PromptReady)
    response.prompts = ready.prompts
    response.reply = [11, 12]
    response.num_frames = 3
    usage = response.usage("thinker")
    audio = 2 + toy.tone(1).key % 5 + toy.tone(2).key % 5
    assert usage.input_audio_tokens == audio
    assert usage.input_image_tokens == 1 + toy.picture(1).key % 5
    assert usage.input_text_tokens == 7, "role 2, two words, end, header 2"
    assert (usage.output_text_tokens, usage.output_audio_tokens, usage.cached_tokens) == (2, 3, 0)


def test_cached_tokens_are_told_apart_as_well() -> None:
    spans = (Span(1, "audio", 1, 4), Span(2, "video", 6, 9, (2, 4, 4), 0.5, 3), Span(3, "image", 16, 4))
    response = ResponseState(1, ResponseRequested("s", "r", "i"), (), 0, "root")
    prompt = StagePrompt(ints(range(21)), ints(range(21)), spans, 21, NO_INTS)
    response.prompts = {"thinker": prompt}
    for cached, audio, image in ((0, 0, 0), (3, 2, 0), (8, 4, 2), (15, 7, 6), (18, 7, 8), (21, 7, 10)):
        response.entry = ArRequest(1, "s", prompt, Sampling(), cached=cached)
        usage = response.usage("thinker")
        assert (usage.cached_tokens, usage.cached_audio_tokens) == (cached, audio)
        assert usage.cached_image_tokens == image


def test_a_videos_frames_count_as_images_and_its_sound_as_audio() -> None:
    spans = (Span(1, "video", 1, 9, (2, 4, 4), 0.5, 1), Span(2, "audio", 11, 2), Span(3, "image", 14, 4))
    response = ResponseState(1, ResponseRequested("s", "r", "i"), (), 0, "root")
    response.prompts = {"thinker": StagePrompt(ints(range(20)), ints(range(20)), spans, 20, NO_INTS)}
    assert response.usage("thinker") == Usage(
        input_text_tokens=5, input_audio_tokens=3, input_image_tokens=12
    )
