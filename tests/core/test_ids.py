"""Ids are unique, and the same in a replay; content keys tell contents apart, not cuts."""

from __future__ import annotations

from antiphon.core.conversation import AudioPart, ImagePart, Item, TextPart, VideoPart, media_of
from antiphon.core.ids import IdSource, content_key


def test_one_salt_one_series() -> None:
    ids, again, other = IdSource("salt"), IdSource("salt"), IdSource("pepper")
    made = [ids.new("item") for _ in range(1000)]
    assert len(set(made)) == 1000
    assert made == [again.new("item") for _ in range(1000)]
    assert other.new("item") not in made
    assert ids.new("resp").startswith("resp_")


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
