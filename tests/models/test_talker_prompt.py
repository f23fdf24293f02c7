"""The talker's prompts equal what the reference's `generate()` hands to its talker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
)
from antiphon.core.facts import PromptReady, StagePrompt
from antiphon.core.plans import RenderPrompt
from models.rooms import MEDIA, MIXED, Room, item


class Caught(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Qwen3OmniMoeForConditionalGeneration:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()


def talker_inputs(
    model: Any, room: Room, prompt: StagePrompt, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What the reference's generate() hands to its talker for our prompt, and its thinker's states."""
    mels = [
        room.audio.mel(np.frombuffer(part.samples, np.float32))
        for part in MEDIA
        if isinstance(part, AudioPart)
    ]
    images = [room.image.patches_of(p.rgb, p.width, p.height) for p in MEDIA if isinstance(p, ImagePart)]
    longest = max(mel.shape[1] for mel in mels)
    features, mask = torch.zeros(len(mels), 128, longest), torch.zeros(len(mels), longest, dtype=torch.long)
    for i, mel in enumerate(mels):
        features[i, :, : mel.shape[1]], mask[i, : mel.shape[1]] = mel, 1
    caught: dict[str, Any] = {}

    def catch(**arguments: Any) -> None:
        raise Caught(arguments)

    generate = model.thinker.generate

    def keep(**arguments: Any) -> Any:
        caught["thinker"] = generate(**arguments)
        return caught["thinker"]

    monkeypatch.setattr(model.talker, "generate", catch)
    monkeypatch.setattr(model.thinker, "generate", keep)
    ids = torch.from_numpy(prompt.token_ids)[None]
    with pytest.raises(Caught) as error, torch.no_grad():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            input_features=features,
            feature_attention_mask=mask,
            pixel_values=torch.cat([patches for patches, _ in images]),
            image_grid_thw=torch.tensor([grid for _, grid in images]),
            speaker=next(iter(model.config.talker_config.speaker_id)),
            thinker_max_new_tokens=2,
            thinker_eos_token_id=None,
        )
    return error.value.arguments | caught


def test_the_talkers_prompt_is_what_the_reference_computes(
    demo: Room, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = demo.render(*MIXED)
    thinker, talker = prompts["thinker"], prompts["talker"]
    expected = talker_inputs(model, demo, thinker, monkeypatch)
    ids = expected["talker_input_ids"][0].tolist()
    assert len(talker.token_ids) == len(ids)
    assert talker.token_ids[: talker.num_stable].tolist() == ids[: talker.num_stable]
    assert talker.num_stable == len(talker.token_ids) - 9
    layer = model.config.talker_config.accept_hidden_layer
    hidden = expected["thinker"].hidden_states[0][layer][0]
    with torch.no_grad():
        shown = model.talker.hidden_projection(hidden[torch.from_numpy(talker.gather)])
    media = np.concatenate([np.arange(span.start, span.start + span.length) for span in talker.spans])
    torch.testing.assert_close(expected["inputs_embeds"][0, media], shown)
    assert len(media) == len(talker.gather) == np.isin(thinker.token_ids, demo.tokens.media).sum()
    assert [(s.key, s.kind, s.length, s.grid) for s in talker.spans] == [
        (s.key, s.kind, s.length, s.grid) for s in thinker.spans
    ]


def test_the_talker_sees_no_system_and_no_assistant(room: Room) -> None:
    full, bare = room.render(*MIXED)["talker"], room.render(MIXED[1], MIXED[3])["talker"]
    assert full.token_ids.tolist() == bare.token_ids.tolist()
    assert full.spans == bare.spans
    only_system = room.render(item("system", "Say hello."))["talker"]
    assert only_system.token_ids[3:].tolist() == [room.tokens.tts_pad] * 4 + [
        room.tokens.tts_bos,
        room.tokens.tts_pad,
    ]
    assert only_system.token_ids[:2].tolist() == [room.tokens.im_start, room.tokens.assistant]
    assert (only_system.num_stable, only_system.spans, len(only_system.gather)) == (0, (), 0)


def test_talker_keys_of_media_depend_on_what_the_thinker_saw_before(demo: Room) -> None:
    """A hidden state at media depends on the system text, of which the talker's prompt shows nothing."""
    brief = demo.render(item("system", "Be brief."), item("user", "hm", MEDIA[0]))["talker"]
    kind = demo.render(item("system", "Be kind."), item("user", "hm", MEDIA[0]))["talker"]
    span = brief.spans[0]
    assert brief.token_ids.tolist() == kind.token_ids.tolist()
    assert brief.keys[: span.start].tolist() == kind.keys[: span.start].tolist()
    media = slice(span.start, span.start + span.length)
    assert not set(brief.keys[media].tolist()) & set(kind.keys[media].tolist())


def test_the_talkers_header_is_never_shared(demo: Room) -> None:
    one, two = (
        demo.prompter.render(RenderPrompt(request, (item("user", "hi"),), True)).prompts["talker"]
        for request in (1, 2)
    )
    assert one.keys[:-9].tolist() == two.keys[:-9].tolist()
    assert len({*one.keys[-9:].tolist(), *two.keys[-9:].tolist()}) == 18


def test_without_speech_there_is_no_talker_prompt(demo: Room) -> None:
    fact = demo.fact(item("user", "hi"), speech=False)
    assert isinstance(fact, PromptReady)
    assert list(fact.prompts) == ["thinker"]
