"""Whatever clients send in whatever order: no exception, one end a response, unique event ids."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from antiphon.core.facts import ResponseRequested
from antiphon.wire.client_events import EVENTS
from antiphon.wire.session import SessionPhase
from wire.ears import PlainEar
from wire.harness import Driver, check_event, message, pcm

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["session", "audio", "item", "item_id", "response", "response_id", "previous_item_id", "event_id", "role"]
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
CALLS = st.sampled_from(
    [CALL, "Well. " + CALL, CALL[:30], CALL[30:], "<tool_call>", "</tool_call>", CALL * 2]
)
TOOL = {"type": "function", "name": "f"}
IDS = st.sampled_from(["a", "b", "root", "gone"])


class Session(RuleBasedStateMachine):
    """A client that does anything and an engine that answers late, early and after the end."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(detectors=PlainEar)
        self.driver.detect(min_speech_ms=200, idle_timeout_ms=5000)

    def items(self) -> list[str]:
        added = [event for event in self.driver.events if event["type"] == "conversation.item.added"]
        return [event["item"]["id"] for event in added]

    def responses(self) -> list[str]:
        created = [event for event in self.driver.events if event["type"] == "response.created"]
        return [event["response"]["id"] for event in created]

    @rule(kind=st.sampled_from(sorted(EVENTS)), fields=st.dictionaries(FIELDS, JSON, max_size=3))
    def anything(self, kind: str, fields: dict) -> None:
        self.driver.frame(json.dumps({**fields, "type": kind}))

    @rule(item=IDS, after=st.none() | IDS)
    def create_item(self, item: str, after: str | None) -> None:
        self.driver.send("conversation.item.create", item=message(id=item), previous_item_id=after)

    @rule(item=IDS)
    def delete_item(self, item: str) -> None:
        self.driver.send("conversation.item.delete", item_id=item)

    @rule(length_s=st.sampled_from([0.01, 0.1]), commit=st.booleans())
    def speak(self, length_s: float, commit: bool) -> None:
        self.driver.send("input_audio_buffer.append", audio=pcm(length_s))
        if commit:
            self.driver.send("input_audio_buffer.commit")

    @rule(
        tools=st.sampled_from([None, [], [TOOL]]),
        choice=st.sampled_from(["auto", "none", "required", {"type": "function", "name": "f"}]),
        transcription=st.sampled_from([None, {"model": "whisper-1"}]),
        detection=st.sampled_from([None, {"type": "server_vad"}, {"type": "semantic_vad"}]),
        audio_format=st.sampled_from(["audio/pcm", "audio/pcmu", "audio/pcma"]),
    )
    def configure(
        self, tools: Any, choice: Any, transcription: Any, detection: Any, audio_format: str
    ) -> None:
        sound = {"format": {"type": audio_format}}
        listening = {**sound, "transcription": transcription, "turn_detection": detection}
        audio = {"input": listening, "output": sound}
        session = {"type": "realtime", "tools": tools, "tool_choice": choice, "audio": audio}
        self.driver.send("session.update", session=session)

    @rule(item=IDS, call=st.booleans())
    def create_call(self, item: str, call: bool) -> None:
        fields = {"name": "f", "arguments": "{}"} if call else {"output": "noon"}
        kind = "function_call" if call else "function_call_output"
        self.driver.send(
            "conversation.item.create", item={"type": kind, "id": item, "call_id": "c", **fields}
        )

    @rule(data=st.data())
    def delete_anything(self, data: st.DataObject) -> None:
        added = [e["item"]["id"] for e in self.driver.events if e["type"] == "conversation.item.added"]
        self.driver.send("conversation.item.delete", item_id=data.draw(st.sampled_from([*added, "gone"])))

    @rule(data=st.data(), text=st.sampled_from(["Ah", "Oh\n"]), over=st.booleans())
    def engine_transcribes(self, data: st.DataObject, text: str, over: bool) -> None:
        asked = [f.response for f in self.driver.facts if isinstance(f, ResponseRequested)]
        if side := sorted(set(asked) - set(self.responses())):
            response = data.draw(st.sampled_from(side))
            self.driver.tokens(response, text)
            if over:
                self.driver.end(response, data.draw(st.sampled_from(["completed", "failed"])))

    @rule(conversation=st.sampled_from([None, "auto", "none"]), modality=st.sampled_from(["audio", "text"]))
    def ask(self, conversation: str | None, modality: str) -> None:
        response = {"conversation": conversation, "output_modalities": [modality]}
        self.driver.send("response.create", response=response)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.driver.send("response.cancel", response_id=data.draw(st.sampled_from([None, *self.responses()])))

    @rule(
        percent=st.sampled_from([0, 40, 90]),
        length_s=st.sampled_from([0.02, 0.1, 0.3, 0.7]),
        by_s=st.sampled_from([0.0, 0.1, 1.0]),
    )
    def hear(self, percent: int, length_s: float, by_s: float) -> None:
        self.driver.now += by_s
        self.driver.hear((percent, length_s))

    @rule(
        detection=st.sampled_from(
            [
                None,
                {"type": "server_vad"},
                {"type": "server_vad", "min_speech_ms": 300, "idle_timeout_ms": 5000},
                {"type": "server_vad", "interrupt_response": False},
                {"type": "semantic_vad", "create_response": False},
            ]
        )
    )
    def detect(self, detection: dict | None) -> None:
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        self.driver.send("session.update", session=session)

    @rule(data=st.data(), end_ms=st.integers(-1, 400))
    def truncate(self, data: st.DataObject, end_ms: int) -> None:
        item = data.draw(st.sampled_from(["gone", *self.items()]))
        self.driver.send("conversation.item.truncate", item_id=item, audio_end_ms=end_ms)

    @rule(data=st.data(), played_ms=st.integers(-5, 400) | st.floats(0, 400))
    def ack(self, data: st.DataObject, played_ms: float) -> None:
        response = data.draw(st.sampled_from(["gone", *self.responses()]))
        self.driver.send("playback.ack", response_id=response, played_ms=played_ms)

    @rule(by_s=st.sampled_from([0.0, 0.05, 1.0, 6.0]))
    def time_passes(self, by_s: float) -> None:
        self.driver.tick(by_s)
        wake_at = self.driver.session.wake_at
        assert wake_at is None or wake_at > self.driver.now, "a tick leaves nothing undone"

    @rule(data=st.data(), text=st.text(max_size=3) | CALLS, speaks=st.booleans())
    def engine_speaks(self, data: st.DataObject, text: str, speaks: bool) -> None:
        if responses := self.responses():
            response = data.draw(st.sampled_from(responses))
            if speaks:
                self.driver.audio(response, 0.01)
            else:
                self.driver.tokens(response, "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000))

    @rule(data=st.data(), status=st.sampled_from(["completed", "cancelled", "failed", "incomplete"]))
    def engine_ends(self, data: st.DataObject, status: str) -> None:
        if responses := self.responses():
            self.driver.end(data.draw(st.sampled_from(responses)), status, "reason", "words")

    @invariant()
    def goes_on(self) -> None:
        assert self.driver.session.phase is SessionPhase.OPEN

    def teardown(self) -> None:
        self.driver.detect(interrupt_response=False)
        while open_ := [r for r in self.responses() if r not in self.done()]:
            for response in open_:
                self.driver.end(response)
        done = [event["response"]["id"] for event in self.driver.events if event["type"] == "response.done"]
        assert sorted(done) == sorted(self.responses())
        ids = [event["event_id"] for event in self.driver.events]
        assert len(set(ids)) == len(ids)
        self.check_order()
        self.check_turns()
        self.check_record()
        self.check_items()

    def check_record(self) -> None:
        """Clients are shown what the next prompt holds. The test's detokeniser lags one character behind."""
        replies = self.driver.recorder.replies()
        requests = self.driver.facts_of(ResponseRequested)
        for request in requests:
            if request.tools and request.response in self.responses():
                self.check_parts(request, replies)
        for item_id in {request.item_id for request in requests if not request.tools}:
            (event,) = self.driver.send("conversation.item.retrieve", item_id=item_id)
            if event["type"] == "error":
                assert item_id not in replies
                continue
            (part,) = event["item"]["content"]
            shown, kept = part.get("transcript", part.get("text")), replies.get(item_id, "")
            assert kept.startswith(shown)
            assert len(kept) - len(shown) <= 1

    def check_parts(self, request: ResponseRequested, replies: dict[str, str]) -> None:
        """A reply with tools is words and calls, each shown as an item: what is left of them stands in the
        record; with the last of them it goes from the record."""
        kind, response = "response.output_item.added", request.response
        added = [e for e in self.driver.events if e["type"] == kind and e["response_id"] == response]
        answers = [self.driver.send("conversation.item.retrieve", item_id=e["item"]["id"]) for e in added]
        shown = [answer["item"] for (answer,) in answers if answer["type"] != "error"]
        kept = replies.get(request.item_id, "")
        assert shown or request.item_id not in replies
        for item in shown:
            (part,) = item.get("content", [{"text": item.get("arguments")}])
            written = iter(kept)
            assert all(char in written for char in part.get("transcript", part.get("text")))

    def done(self) -> set[str]:
        return {e["response"]["id"] for e in self.driver.events if e["type"] == "response.done"}

    def check_turns(self) -> None:
        """Starts and stops alternate, at times that never go back."""
        kind = "input_audio_buffer.speech_"
        turns = [event for event in self.driver.events if event["type"].startswith(kind)]
        last = 0
        for at, event in enumerate(turns):
            is_start = event["type"] == f"{kind}started"
            assert is_start == (at % 2 == 0)
            assert is_start or event["item_id"] == turns[at - 1]["item_id"]
            now = event["audio_start_ms" if is_start else "audio_end_ms"]
            assert now >= last
            last = now

    def check_items(self) -> None:
        """What opens closes once, within its response; the last event of an item shows it as it is."""
        opened: dict[str, str] = {}
        for event in self.driver.events:
            item = event.get("item", {})
            if event["type"] == "response.output_item.added":
                assert item["id"] not in opened
                opened[item["id"]] = event["response_id"]
            elif event["type"] == "response.output_item.done":
                assert opened.pop(item["id"]) == event["response_id"]
                assert item["status"] in ("completed", "incomplete")
            elif event["type"] == "response.done":
                assert event["response"]["id"] not in opened.values()

    def check_order(self) -> None:
        """Nothing of a response comes before its creation or after its end."""
        state: dict[str, str] = {}
        for event in self.driver.events:
            response = event.get("response_id") or event.get("response", {}).get("id")
            if response is None:
                continue
            if event["type"] == "response.created":
                assert response not in state
                state[response] = "open"
            else:
                assert state[response] == "open", event
                if event["type"] == "response.done":
                    state[response] = "done"


TestSession = Session.TestCase
TestSession.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.binary(max_size=40) | JSON.map(json.dumps))
def test_any_frame_gets_one_error_event(frame: str | bytes) -> None:
    driver = Driver()
    (event,) = driver.frame(frame)
    assert event["type"] == "error"
    check_event(event)
