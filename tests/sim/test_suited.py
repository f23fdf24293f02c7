"""Who can be served by a model of text, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.core.errors import ConfigError
from antiphon.latency.finding import find_costs
from antiphon.latency.shapes import find_shape
from antiphon.metrics.recorder import fold
from antiphon.metrics.rows import Run
from antiphon.metrics.summary import figures
from antiphon.sim.model import engine_of, released
from antiphon.sim.run import Setup, simulate
from antiphon.sim.suited import check_suited, unsuited
from antiphon.workload.draw import draw
from antiphon.workload.load import changed, named, names
from antiphon.workload.script import PersonScript
from sim.runs import started

LLAMA = find_costs("a6000", find_shape("llama-3-8b"))
TEXT = engine_of(LLAMA)


def test_text_models_serve_those_who_type_and_read() -> None:
    fitting = [name for name in names() if not list(unsuited(named(name), TEXT.node))]
    assert fitting == ["agents", "burst-readers", "readers"]
    assert not any(list(unsuited(named(name), released().node)) for name in names())


def test_the_others_are_refused_with_what_they_do() -> None:
    with pytest.raises(ConfigError) as refused:
        Setup(named("mixed"), LLAMA, engine=TEXT)
    said = str(refused.value)
    assert "group talker speaks, and the model does not hear" in said
    assert "group onlooker shows pictures or clips, and the model does not see" in said
    assert "group onlooker wants spoken replies, and the model has no voice" in said
    assert "reader" not in said.split(". ")[0]
    assert "Workloads that suit it: agents, burst-readers, readers" in said


def test_talkers_who_type_are_served() -> None:
    settings = {"people.talker.typed": 1, "people.talker.barge_in.probability": 0}
    check_suited(changed(named("barge-in"), settings), TEXT.node)
    spoken = settings | {"people.talker.replies": "speech"}
    with pytest.raises(ConfigError, match="talker wants spoken replies"):
        check_suited(changed(named("barge-in"), spoken), TEXT.node)
    absent = {"people.talker.share": 0, "people.onlooker.share": 0}
    check_suited(changed(named("mixed"), absent), TEXT.node)


def played(workload: str, load: dict[str, Any]) -> Run:
    made = Setup(changed(named(workload), {"load": load}), LLAMA, engine=TEXT, patience_s=600.0)
    return fold(simulate(made, started()).events)


def test_readers_and_agents_are_served() -> None:
    found = figures(played("readers", {"closed": {"concurrency": 4, "duration_s": 60.0}}))
    assert found["tpot_s.p50"] == pytest.approx(0.027, rel=0.05), "a token takes a step"
    assert found["ttft_s.p90"] < 0.5
    assert not found.keys() & {"ttfp_s.p50", "continuity", "waste_ratio"}
    agents = figures(played("agents", {"closed": {"concurrency": 4, "sessions": 6}}))
    assert agents["unanswered_turns"] == 0
    assert agents["makespan_s.p50"] > agents["best_effort_jct_s.p50"] > 0


def test_a_reply_of_a_text_model_is_as_long_as_its_client_allows() -> None:
    """Also over the 1,024 tokens that end a reply of Qwen3-Omni."""
    load = {"open": {"arrivals": {"bursts": {"size": 3, "every_s": 500}}, "sessions": 3}}
    asked = [
        turn.max_output_tokens
        for script in draw(changed(named("burst-readers"), {"load": load}), 0)
        if isinstance(script, PersonScript)
        for turn in script.turns
    ]
    rows = played("burst-readers", load).responses
    assert sorted(row.output_text_tokens or 0 for row in rows) == sorted((most or 1) - 1 for most in asked)
    assert max(most or 0 for most in asked) > 1024
