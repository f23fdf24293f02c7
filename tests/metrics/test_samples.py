"""Counters and gauges out of samples: keys, increases, balance, utilisation, caching."""

from __future__ import annotations

import pytest

from antiphon.metrics.log import ServerSampled
from antiphon.metrics.names import Metric, parse_key
from antiphon.metrics.samples import (
    cache_hit_share,
    cached_share,
    imbalance,
    increases,
    load_imbalance,
    node_loads,
    reload_s,
    sampled_s,
    utilisation,
)
from fakes.logs import reply, rows, sample


def test_keys_are_names_and_labels() -> None:
    assert parse_key("antiphon_sessions") == ("antiphon_sessions", {})
    assert parse_key('x_total{node="a",stage="talker"}') == ("x_total", {"node": "a", "stage": "talker"})


def test_increases_add_nodes_and_survive_a_restart() -> None:
    def at(t_s: float, a: float, b: float, whole: float) -> ServerSampled:
        name = Metric.STEPS.value
        values = {f'{name}{{node="a",stage="s"}}': a, f'{name}{{node="b",stage="s"}}': b, name: whole}
        return ServerSampled(t_s=t_s, values={**values, "other": 99.0 * t_s})

    samples = [at(1.0, 5, 1, 0), at(2.0, 9, 2, 0), at(4.0, 3, 4, 7)]
    # a: 4, then anew with 3; b: 1 + 2
    assert increases(samples, Metric.STEPS) == {"s": 10.0, "": 7.0}
    assert increases(samples[:1], Metric.STEPS) == {}
    assert (sampled_s(samples), sampled_s([])) == (3.0, 0.0)


def test_imbalance_is_the_highest_load_over_the_median() -> None:
    assert imbalance([10, 10, 31]) == 3.1
    assert imbalance([2, 4]) == pytest.approx(4 / 3)
    assert imbalance([5, 5, 5, 5]) == 1.0
    assert imbalance([7]) is None
    assert imbalance([0, 0, 3]) is None


def test_load_of_nodes_is_what_runs_and_waits_there() -> None:
    running, waiting = Metric.REQUESTS_RUNNING.value, Metric.REQUESTS_WAITING.value
    values = {
        f'{running}{{node="a",stage="thinker"}}': 2.0,
        f'{running}{{node="a",stage="talker"}}': 1.0,
        f'{waiting}{{node="a",stage="thinker"}}': 3.0,
        f'{running}{{replica="b",stage="thinker"}}': 2.0,
        f'{running}{{stage="thinker"}}': 50.0,
        f'{Metric.KV_BLOCKS.value}{{node="a",stage="thinker"}}': 50.0,
    }
    both = ServerSampled(t_s=0.0, values=values)
    assert node_loads(both) == {"a": 6.0, "b": 2.0}
    assert load_imbalance([both, sample(1.0, requests_running=4.0)]) == [1.5]  # 6 over 4


def test_utilisation_is_device_seconds_per_wall_second() -> None:
    samples = [sample(10.0, step_seconds_total=3.0), sample(14.0, step_seconds_total=5.0)]
    assert utilisation(samples) == {"talker": 0.5}
    assert utilisation(samples[:1]) == {}


def test_cached_share_of_prompts() -> None:
    served = rows(
        reply(response="x", end_s=2.0, input_tokens=100, cached_tokens=75),
        reply(response="y", end_s=3.0, input_tokens=300, cached_tokens=25),
        reply(response="z", end_s=3.0, input_tokens=300),
        reply(response="none", end_s=3.0, input_tokens=0, cached_tokens=0),
    )
    assert cached_share(served) == [0.75, pytest.approx(1 / 12)]
    assert cache_hit_share(served) == 0.25  # 100 of 400
    assert cache_hit_share(()) is None


def test_reload_is_what_the_server_counted() -> None:
    samples = [sample(0.0, reload_seconds_total=1.0), sample(1.0, reload_seconds_total=1.25)]
    assert reload_s(samples) == 0.25
    assert reload_s([sample(0.0), sample(1.0)]) is None
