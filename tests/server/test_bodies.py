"""Bodies of requests without a server: where they are parsed, and how long they may take to come."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from antiphon.core.errors import ProtocolError
from antiphon.server import bodies
from antiphon.server.bodies import LONG_BODY_BYTES, typed
from antiphon.wire.audio_api import SpeechRequest


async def test_a_long_body_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    decode = bodies.decode_json

    def watched(text: bytes, what: str) -> Any:
        threads.append(threading.current_thread())
        return decode(text, what)

    monkeypatch.setattr(bodies, "decode_json", watched)
    for num_chars in (10, LONG_BODY_BYTES):
        body = b'{"input": "' + b"a" * num_chars + b'"}'
        assert len((await typed(body, SpeechRequest)).input) == num_chars
        with pytest.raises(ProtocolError, match="not valid JSON"):
            await typed(body[:-1], SpeechRequest)
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [True, True, False, False]
