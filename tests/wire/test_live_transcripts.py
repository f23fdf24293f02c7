"""What a person says, in writing, while they say it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from antiphon.core.conversation import AudioPart, TranscriptOptions
from antiphon.core.facts import ItemAdded, ResponseRequested, TurnForeseen, WordsWanted
from antiphon.core.ids import IdSource
from antiphon.core.plans import NO_SPEECH, ResponseEnded, Usage, WordsHeard, ints
from antiphon.wire import listener
from antiphon.wire.limits import Limits
from antiphon.wire.listener import Listener, PushBegan, SpeechContinues
from antiphon.wire.transcription import stable
from wire.ears import PlainEar
from wire.harness import INFO, Driver, FakeMedia, kinds, pcm
from wire.speaking import QUIET, VOICE

KIND = "conversation.item.input_audio_transcription."


def talking(limits: Limits | None = None, languages: tuple[str, ...] = ("en",), **more: float) -> Driver:
    """A session that wants its input in writing, of a model that writes down what is said."""
    info = msgspec.structs.replace(INFO, reads_ahead=True, languages=languages, **more)
    driver = Driver(limits, PlainEar, info=info)
    asked = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}
    assert kinds(driver.send("session.update", session=asked)) == ["session.updated"]
    return driver


def written(driver: Driver, text: str) -> list[dict[str, Any]]:
    """The engine has written down the recording that was wanted last; the events."""
    wanted = driver.fact(WordsWanted)
    tokens = ints([ord(char) for char in text])
    return driver.output(WordsHeard(driver.session.id, wanted.item_id, tokens, wanted.is_pause))


def finished(driver: Driver, text: str) -> list[dict[str, Any]]:
    """The transcript of the whole turn, token by token; its events."""
    side = next(fact for fact in reversed(driver.facts_of(ResponseRequested)) if fact.transcribe).response
    return [event for char in text for event in driver.tokens(side, char)] + driver.end(side)


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == KIND + "delta")


def test_the_words_so_far_are_shown_at_a_bounded_rate_in_pauses_and_go_on_to_the_end() -> None:
    driver = talking()
    (started,) = driver.hear((VOICE, 1.4))
    assert not driver.facts_of(WordsWanted)
    driver.hear((VOICE, 0.2))
    assert [one.is_pause for one in driver.facts_of(WordsWanted)] == [False]
    assert written(driver, " The capital of") == []
    driver.hear((VOICE, 1.6))
    first = written(driver, " The capital of France is")
    assert kinds(first) == [KIND + "delta"]
    assert {event["item_id"] for event in first} == {started["item_id"]}
    assert deltas(first) == "The capital of"
    driver.hear((VOICE, 0.3), (QUIET, 0.3))
    second = written(driver, " The capital of France is big.")
    assert deltas(second) == " France is"
    foreseen, wanted = driver.facts_of(TurnForeseen)[-1], driver.fact(WordsWanted)
    assert wanted.is_pause
    assert driver.facts.index(foreseen) == driver.facts.index(wanted) - 1, "first the reply, then the words"
    assert wanted.parts == foreseen.item.parts, "which is written down once for both"
    driver.hear((QUIET, 0.4))
    assert driver.fact(ItemAdded).item.parts == wanted.parts
    assert len(driver.facts_of(WordsWanted)) == 3, "silence is not written down"
    last = finished(driver, "The capital of France is big.")
    assert last[-1]["type"] == KIND + "completed"
    assert deltas(first + second + last) == last[-1]["transcript"] == "The capital of France is big."
    assert {event["item_id"] for event in last} == {started["item_id"]}


def test_the_words_of_a_turn_that_is_committed_by_hand_are_shown_before_that() -> None:
    driver = talking()
    driver.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    driver.hear((VOICE, 1.4))
    assert not driver.facts_of(WordsWanted)
    driver.hear((VOICE, 0.2))
    assert not written(driver, "The capital of")
    driver.hear((VOICE, 3.0))
    first = written(driver, "The capital of France is")
    assert deltas(first) == "The capital of"
    (wanted, last) = driver.facts_of(WordsWanted)
    assert not wanted.is_pause
    assert len(wanted.parts[0].samples) < len(last.parts[0].samples)
    committed = driver.send("input_audio_buffer.commit")[0]
    assert {committed["item_id"], first[0]["item_id"], wanted.item_id} == {last.item_id}
    assert driver.fact(ItemAdded).item.parts == last.parts
    ended = finished(driver, "The capital of France is Paris.")
    assert deltas(first + ended) == ended[-1]["transcript"]
    driver.hear((VOICE, 1.6))
    driver.send("input_audio_buffer.clear")
    driver.hear((VOICE, 1.6))
    cleared, anew = driver.facts_of(WordsWanted)[2:]
    assert cleared.item_id != anew.item_id


def test_a_recording_is_resampled_once_for_all_that_it_is_wanted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    resample = FakeMedia.audio_part
    monkeypatch.setattr(
        FakeMedia, "audio_part", lambda self, pcm16: (made.append(len(pcm16)), resample(self, pcm16))[1]
    )
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    driver.hear((QUIET, 0.5))
    assert driver.facts_of(TurnForeseen)
    assert driver.facts_of(WordsWanted)
    assert driver.fact(ItemAdded)
    assert len(made) == 1


def test_where_the_whole_turn_begins_otherwise_the_end_is_right_and_nothing_more_is_added() -> None:
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    assert deltas(written(driver, "I scream for you.")) == "I scream for"
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    assert written(driver, "Ice cream for you and me.") == []
    driver.hear((QUIET, 0.5))
    (completed,) = finished(driver, "Ice cream for you and me.")
    assert completed["transcript"] == "Ice cream for you and me."


def test_words_that_come_late_or_of_another_turn_are_not_shown() -> None:
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    first = driver.fact(WordsWanted)
    driver.hear((QUIET, 0.5))
    late = WordsHeard(driver.session.id, first.item_id, ints([ord(char) for char in "one two"]), True)
    assert driver.output(late) == []
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    assert driver.output(late) == []
    assert deltas(written(driver, "three four")) == "three"
    assert deltas(finished(driver, "one two")) == "one two", "of the first turn nothing was sent"
    driver._keep(driver.session.close(0.0))
    assert written(driver, "three four five") == []


def test_a_turn_in_which_nobody_speaks_is_an_empty_transcript_and_a_response_that_says_so() -> None:
    """In events that the official SDK knows, with none of them for words that were not said."""
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    assert written(driver, "") == []
    driver.hear((QUIET, 0.5))
    reply = driver.request
    (completed,) = finished(driver, "")
    assert completed["type"] == KIND + "completed"
    assert completed["transcript"] == ""
    assert not reply.transcribe
    ended = ResponseEnded(
        driver.session.id, reply.response, "cancelled", NO_SPEECH, "Nobody speaks.", Usage()
    )
    done = driver.output(ended)[-1]
    assert done["type"] == "response.done"
    assert done["response"]["status"] == "cancelled"
    assert done["response"]["output"] == []
    error = {"type": "invalid_request_error", "code": "no_speech"}
    assert done["response"]["status_details"] == {"type": "cancelled", "error": error}
    driver.hear((VOICE, 0.5), (QUIET, 0.8))
    assert driver.request.response != reply.response, "the next turn is answered"


def test_who_asks_for_a_reply_with_instructions_gets_it_though_nobody_spoke() -> None:
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.8))
    assert not driver.request.answers_silence
    driver.end(driver.request.response, "cancelled", NO_SPEECH)
    for asked, answers in (({}, False), ({"instructions": ""}, False), ({"instructions": "Greet."}, True)):
        driver.end(driver.ask(**asked))
        assert driver.request.answers_silence == answers


def test_a_person_who_says_nothing_for_a_while_is_spoken_to() -> None:
    """The reply that is owed then answers a recording of silence."""
    driver = talking()
    driver.detect(idle_timeout_ms=5000)
    driver.end(driver.ask())
    driver.hear((QUIET, 5.0))
    driver.tick(6.0)
    assert driver.request.answers_silence


def test_nothing_is_told_of_words_that_were_dropped() -> None:
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    driver.send("input_audio_buffer.clear")
    assert written(driver, "one two three") == []


@pytest.mark.parametrize("end", ["input_audio_buffer.commit", "input_audio_buffer.clear"])
def test_the_sound_of_a_turn_that_is_over_is_not_kept_here(end: str) -> None:
    driver = talking()
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    assert driver.session._items._spoken is not None
    driver.send(end)
    assert driver.session._items._spoken is None


def test_no_words_are_wanted_by_a_session_without_transcripts_nor_of_a_model_that_reads_its_input() -> None:
    silent = Driver(detectors=PlainEar, info=msgspec.structs.replace(INFO, reads_ahead=True))
    model = Driver(detectors=PlainEar)
    audio = {"input": {"transcription": {"model": "whisper-1"}}}
    model.send("session.update", session={"type": "realtime", "audio": audio})
    for driver in (silent, model):
        driver.hear((VOICE, 2.0))
        driver.hear((QUIET, 0.3))
        driver.hear((QUIET, 0.3))
        assert not driver.facts_of(WordsWanted)


def test_no_words_are_wanted_of_a_turn_that_there_is_no_room_for() -> None:
    driver = talking(Limits(max_items=1))
    driver.ask()
    driver.hear((VOICE, 2.0))
    assert not driver.facts_of(WordsWanted)


def test_language_and_prompt_hold_for_what_is_said_from_then_on() -> None:
    driver = talking(languages=("en", "de"))
    audio = {"input": {"transcription": {"language": "de-DE", "prompt": "Ada"}}}
    (updated,) = driver.send("session.update", session={"type": "realtime", "audio": audio})
    assert updated["session"]["audio"]["input"]["transcription"] == {"language": "de", "prompt": "Ada"}
    driver.hear((VOICE, 0.5), (QUIET, 0.3))
    driver.hear((QUIET, 0.5))
    asked = TranscriptOptions("de", "Ada")
    (heard,) = driver.fact(WordsWanted).parts
    assert heard.options == asked
    taken = driver.facts_of(TurnForeseen)[-1].item, driver.fact(ItemAdded).item
    side, reply = driver.facts_of(ResponseRequested)
    for item in (*taken, *(side.items or ())):
        (part,) = (part for part in item.parts if isinstance(part, AudioPart))
        assert part.options == asked
    assert (side.transcribe, reply.transcribe, reply.items) == (True, False, None)
    audio = {"input": {"transcription": {"prompt": "Eve"}}}
    driver.send("session.update", session={"type": "realtime", "audio": audio})
    sound = {"type": "input_audio", "audio": pcm(0.2)}
    driver.send("conversation.item.create", item={"type": "message", "role": "user", "content": [sound]})
    (later,) = driver.facts_of(ItemAdded)[-1].item.parts
    assert isinstance(later, AudioPart)
    assert later.options == TranscriptOptions(prompt="Eve")
    audio = {"input": {"transcription": {"language": "fr"}}}
    error = driver.error("session.update", session={"type": "realtime", "audio": audio})
    assert error["code"] == "unsupported_language"
    assert error["param"] == "session.audio.input.transcription.language"


@pytest.mark.parametrize(
    ("before", "text", "in_speech", "in_pause"),
    [
        ("", "", "", ""),
        ("", "one two three", "", "one two"),
        ("one two", "one two three", "one two", "one two"),
        ("one two.", "one two three", "one", "one two"),
        ("one two three", "one two three", "one two", "one two"),
        ("one two three", "one", "", ""),
        ("one  two three", "one  two four", "one  two", "one  two"),
    ],
)
def test_what_is_sent_of_a_turn_that_goes_on(before: str, text: str, in_speech: str, in_pause: str) -> None:
    assert stable(before, text, is_pause=False) == in_speech
    assert stable(before, text, is_pause=True) == in_pause


def test_a_turn_that_is_very_long_is_written_down_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_AHEAD_MS", 2000)
    driver = talking()
    for _ in range(6):
        driver.hear((VOICE, 0.5))
    driver.hear((QUIET, 0.3))
    assert len(driver.facts_of(WordsWanted)) == 1
    assert len(driver.facts_of(TurnForeseen)) == 1, "before anything was said"
    driver.hear((QUIET, 0.5))
    assert driver.fact(ItemAdded)
    assert [one.transcribe for one in driver.facts_of(ResponseRequested)] == [True, False]


def test_a_very_long_recording_of_a_client_that_commits_by_hand_is_not_copied_each_time() -> None:
    ear = Listener(Limits(), IdSource("x"), None, tells_pauses=True)
    told = [one for _ in range(40) for one in ear.append(bytes(48_000 * 2), reply_is_heard=False)]
    assert isinstance(told[0], PushBegan)
    lengths = [len(one.audio) / 48_000 for one in told if isinstance(one, SpeechContinues)]
    assert lengths == list(range(2, 61, 2))
    assert ear.buffered_ms == 80_000


def test_a_turn_that_is_longer_than_is_heard_at_a_time_is_one_item() -> None:
    driver = talking(max_recording_s=1.0)
    driver.hear((VOICE, 1.0), (VOICE, 1.4), (QUIET, 0.3))
    driver.hear((QUIET, 0.5))
    item = driver.fact(ItemAdded).item
    assert len(item.parts) > 1
    assert (
        driver.facts_of(WordsWanted)[-1].parts == driver.facts_of(TurnForeseen)[-1].item.parts == item.parts
    )
    side = driver.facts_of(ResponseRequested)[0]
    assert side.items[0].parts[:-1] == item.parts
    added = [event for event in driver.events if event["type"] == "conversation.item.added"]
    assert [len(event["item"]["content"]) for event in added] == [1]
