"""One metric, one name, one description."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.metrics.names import DESCRIPTIONS, FIGURES, SUFFIXES, Figure, Metric, parse_figure
from fakes.world import World, toy_config


def test_every_metric_is_described_and_named_as_prometheus_wants() -> None:
    assert set(DESCRIPTIONS) == set(Metric)
    assert all(re.fullmatch(r"antiphon_[a-z_]+", metric.value) for metric in Metric)
    assert Metric.KV_BLOCKS.of("thinker") == 'antiphon_kv_blocks{stage="thinker"}'


def test_a_node_reports_only_known_names() -> None:
    stats = World(toy_config()).node.stats()
    assert {name.split("{")[0] for name in stats} <= {metric.value for metric in Metric}
    assert stats[Metric.KV_BLOCKS_FREE.of("talker")] == stats[Metric.KV_BLOCKS.of("talker")] == 24


def test_every_figure_is_described_with_its_unit() -> None:
    assert set(FIGURES) == set(Figure)
    assert all(info.text.endswith(".") and info.unit for info in FIGURES.values())
    units = {"_tokens_per_s": "tokens/s", "_rps": "1/s", "_per_minute": "1/min", "_ratio": "share"}
    for figure, info in FIGURES.items():
        by_name = next((unit for end, unit in units.items() if figure.value.endswith(end)), None)
        by_name = by_name or ("s" if re.fullmatch(r"(?!.*_per_).*_s", figure.value) else None)
        assert by_name in (None, info.unit), figure


def test_keys_of_figures() -> None:
    assert parse_figure("continuity") == (Figure.CONTINUITY, None)
    assert all(parse_figure(Figure.TTFP_S.at(suffix)) == (Figure.TTFP_S, suffix) for suffix in SUFFIXES)
    assert Figure.WASTE_TOKENS.of("talker") == 'waste_tokens{stage="talker"}'
    assert parse_figure('waste_tokens{stage="talker"}') == (Figure.WASTE_TOKENS, "talker")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("speed", "'speed' names no figure"),
        ("ttfp_s p90", "names no figure"),
        ("ttfp_s", "ttfp_s takes a suffix of mean, p50, p90, p95, p99"),
        ("ttfp_s.p42", "ttfp_s takes a suffix of"),
        ('ttfp_s{stage="talker"}', "ttfp_s takes a suffix of"),
        ("continuity.p50", "continuity takes neither suffix nor label"),
        ('continuity{stage="talker"}', "continuity takes neither suffix nor label"),
        ("waste_tokens", 'waste_tokens takes the label {stage="…"}'),
        ('waste_tokens{node="a"}', 'waste_tokens takes the label {stage="…"}'),
    ],
)
def test_what_is_no_key_is_refused_in_words(key: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_figure(key)


def test_the_docs_explain_every_figure() -> None:
    text = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text()
    assert [str(figure) for figure in Figure if f"`{figure}" not in text] == []
