"""What a model does not take is named before anything else that may be wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.errors import ProtocolError
from antiphon.wire.chat import ChatRequest
from antiphon.wire.chat_reading import check_media
from antiphon.wire.parsing import check_taken, converted
from wire.harness import INFO, Driver
from wire.test_chat_reading import inline

HEARS, READS = (msgspec.structs.replace(INFO, inputs=inputs) for inputs in (("audio",), ()))


def test_what_the_model_takes_is_told() -> None:
    check_taken("audio", HEARS, "at")
    with pytest.raises(ProtocolError, match="test-omni takes text and audio: leave image out") as refused:
        check_taken("image", HEARS, "messages[0].content[1]")
    assert refused.value.param == "messages[0].content[1].type"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": inline(b"odd")}},
        {"type": "video_url", "video_url": {"url": "data:broken"}},
        {"type": "video", "video": ["data:broken"]},
        {"type": "image_url", "image_url": {"url": "http://nowhere/a.png"}},
    ],
)
def test_a_broken_picture_for_a_model_that_does_not_see(part: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": [part]}]}
    with pytest.raises(ProtocolError, match="takes text and audio: leave image out") as refused:
        check_media(converted(body, ChatRequest), HEARS)
    check_media(converted(body, ChatRequest), INFO)
    assert refused.value.param == "messages[0].content[0].type"


@pytest.mark.parametrize(
    ("info", "types"),
    [
        (INFO, "input_text, input_audio, input_image, input_video"),
        (HEARS, "input_text, input_audio"),
        (READS, "input_text"),
    ],
)
def test_a_session_tells_the_parts_that_its_model_takes(info: Any, types: str) -> None:
    driver = Driver(info=info)
    item = {"type": "message", "role": "user", "content": [{"type": "text", "text": "hi"}]}
    said = driver.error("conversation.item.create", item=item)["message"]
    assert said.endswith(f"; supported: {types}.")
    extensions = driver.started[0]["session"]["x_extensions"]
    assert ("input_video" in extensions) == ("input_video" in types)
