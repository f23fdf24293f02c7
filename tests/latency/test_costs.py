"""What a node knows of the time that steps and copies take, as policies ask for it."""

from __future__ import annotations

from math import isnan

import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.facts import NO_INTS
from antiphon.core.plans import ints
from antiphon.latency.costs import ProfiledCodec, ProfiledCopies, ProfiledDecoder, Times
from antiphon.latency.features import CodecFeatures
from antiphon.latency.finding import find_costs
from antiphon.latency.models import ArModel, CodecModel, LinkModel
from latency.steps import ar_step

H200 = find_costs("h200")
WRITER, CODEC = H200.stages["thinker"].model, H200.stages["code2wav"].model


def test_rows_cost_what_a_step_of_them_costs_that_all_draw() -> None:
    assert isinstance(WRITER, ArModel)
    cost = ProfiledDecoder(WRITER)
    assert cost.seconds(NO_INTS, NO_INTS) == 0.0
    step = ar_step([(40, 1, True), (3, 7, True)])
    assert cost.seconds(ints([1, 7]), ints([40, 3])) == H200.step_s(step) > 0.0


def test_streams_that_bring_equally_many_frames_are_decoded_together() -> None:
    assert isinstance(CODEC, CodecModel)
    cost = ProfiledCodec(CODEC)
    assert cost.seconds(NO_INTS, NO_INTS) == 0.0
    asked = cost.seconds(ints([4, 4, 2]), ints([0, 8, 8]))
    assert asked == CODEC.seconds(CodecFeatures(streams=3, frames=10, groups=2))


def test_copies_take_their_link_and_what_is_not_known_is_nan() -> None:
    times = Times(links={"host": LinkModel(0.5, 0.01)}, block_bytes={"thinker": {"kv": 10}})
    copies = ProfiledCopies(times, {"thinker.1": "thinker", "talker": "talker"})
    assert copies.seconds("thinker.1", "kv", "host", 3) == pytest.approx(0.5 + 0.01 * 30)
    copies.reported("thinker.1", "kv", "host", 3, 99.0)
    assert copies.seconds("thinker.1", "kv", "host", 3) == pytest.approx(0.8), "a profile is not corrected"
    unknown = (("thinker.1", "kv", "device"), ("thinker.1", "hidden", "host"), ("talker", "kv", "host"))
    assert all(isnan(copies.seconds(*what, 3)) for what in unknown)


def test_times_are_read_as_they_were_written() -> None:
    times = Times({"code2wav": CODEC}, {"host": LinkModel(0.0, 1e-9)}, {"thinker": {"kv": 7}})
    assert Times.of(times.written) == times
    for wrong in ({"stages": 3}, {"links": {"host": {"alpha_s": "x"}}}):
        with pytest.raises(ConfigError, match="they are part of a latency profile"):
            Times.of(wrong)
