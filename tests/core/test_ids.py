"""Ids are unique, and the same in a replay; content keys tell contents apart, not cuts."""

from __future__ import annotations

from antiphon.core.conversation import (
    AudioPart,
    ImagePart,
    Item,
    TextPart,
    TranscriptOptions,
    VideoPart,
    media_of,
)
from antiphon.core.ids import IdSource, content_key


def test_one_salt_one_series() -> None:
    ids, again, other = IdSource("salt"), IdSource("salt"), IdSource("pepper")
    made = [ids.new("item") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert made == [again.new("item") for _ in range(1000)]
    assert other.new("item") not in made
    assert ids.new("resp").startswith("resp_")
    assert ids.new("chatcmpl", "-").startswith("chatcmpl-")


def test_content_keys_fit_and_know_where_a_part_ends() -> None:
    assert content_key(b"ab", b"c") != content_key(b"a", b"bc")
    assert content_key(b"x") == content_key(b"x") == 0x112BF4F7205BBC02
    assert all(0 <= content_key(bytes([i])) < 1 << 62 for i in range(256))


def test_media_know_their_kind_and_shape() -> None:
    audio, image = AudioPart.of(bytes(12)), ImagePart.of(bytes(12), 2, 2)
    assert audio.num_samples == 3
    assert len({audio.key, image.key, ImagePart.of(bytes(12), 4, 1).key}) == 3
    video = VideoPart.of(bytes(12), (2, 2), 1, 1.0)
    items = (Item("a", "user", (TextPart("hi"), audio)), Item("b", "user", (video, image)))
    assert media_of(items) == (audio, video, image)


def test_a_recording_has_a_transcript_for_each_way_to_write_it_down() -> None:
    plain = AudioPart.of(bytes(8))
    ways = (None, TranscriptOptions(), TranscriptOptions("de"), TranscriptOptions(seed=1))
    keys = [AudioPart(plain.samples, plain.key, way).transcript_key for way in ways]
    assert keys[0] == plain.key
    assert len({*keys, AudioPart(bytes(8), plain.key + 1, ways[1]).transcript_key}) == 5


def test_equal_ways_name_one_transcript_whichever_was_asked_for_first() -> None:
    """There or in another process."""
    for both in ((0.0, -0.0), (-0.0, 0.0)):
        ways = [TranscriptOptions(prompt=f"{both}", temperature=one) for one in both]
        assert len({AudioPart(b"", 5, way).transcript_key for way in ways}) == 1
    assert AudioPart(b"", 5, TranscriptOptions(temperature=-0.0)).transcript_key == 1076653112197450423
