"""Other models than Qwen3-Omni, at datasheet times: one of two stages, one whose vocoder decodes windows."""

from __future__ import annotations

import pytest

from antiphon.core.config import NodeConfig
from antiphon.core.conversation import AudioPart, Item, VideoPart
from antiphon.core.errors import ConfigError
from antiphon.core.plans import RenderPrompt
from antiphon.graphs import find_graph
from antiphon.latency.finding import find_costs
from antiphon.latency.profile import Profile
from antiphon.latency.shapes import find_shape
from antiphon.metrics.log import AudioDelta, ResponseEnded, TextDelta
from antiphon.metrics.recorder import fold
from antiphon.metrics.summary import figures
from antiphon.sim.model import engine_of
from antiphon.sim.places import Replicas
from antiphon.sim.prompter import SimPrompter
from antiphon.sim.run import Outcome, Setup, simulate
from antiphon.sim.sizes import Sizes
from antiphon.workload.load import changed, named
from sim.runs import started

MING, QWEN25 = "ming-flash-omni", "qwen2.5-omni-7b"
RANKS = {MING: 2, QWEN25: 1}
TWO_OF_EACH = Replicas(2, 2, apart=True)


def costs(model: str) -> Profile:
    return find_costs("H200", find_shape(model), RANKS[model])


def played(model: str, preset: str, workload: str = "mixed-video", **settings: object) -> Outcome:
    load = {"load": {"closed": {"concurrency": 3, "sessions": 4}}}
    sizes = Sizes(kv_tokens=8192, host_kv_tokens=65536, max_context_tokens=8192)
    engine = engine_of(costs(model), preset, sizes, TWO_OF_EACH)
    return simulate(Setup(changed(named(workload), {**load, **settings}), costs(model), 3, engine), started())


def node_of(model: str) -> NodeConfig:
    return engine_of(costs(model)).node


@pytest.mark.parametrize("preset", ["fcfs", "liveserve"])
@pytest.mark.parametrize("model", [MING, QWEN25])
def test_everybody_is_answered_on_either_preset(model: str, preset: str) -> None:
    outcome = played(model, preset)
    found = figures(fold(outcome.events))
    assert not outcome.overruled
    assert not outcome.incidents
    assert found["turns"] == found["completed_turns"] > 4
    assert 0 < found["ttfp_s.p50"] < 1
    assert found["continuity"] == 1
    stages = {unit.stage for unit in node_of(model).placed}
    assert stages == {stage.name for stage in find_graph(node_of(model).graph).stages}
    if (model, preset) == (QWEN25, "liveserve"):
        assert played(model, preset).log == outcome.log, "the same again"


def test_a_talker_without_a_vocoder_sounds_by_itself_once_all_is_written() -> None:
    """A token of the reply lasts as long as in any other model, in patches of 0.32 s."""
    events = played(MING, "fcfs", **{"people.talker.barge_in.probability": 0}).events
    written: dict[str, float] = {}
    first: dict[str, float] = {}
    length_s: dict[str, float] = {}
    for event in events:
        if isinstance(event, TextDelta):
            written[event.response] = event.t_s
        elif isinstance(event, AudioDelta):
            first.setdefault(event.response, event.t_s)
            length_s[event.response] = length_s.get(event.response, 0.0) + event.audio_s
    assert first
    assert all(written[response] <= at_s for response, at_s in first.items())
    ended = {event.response: event for event in events if isinstance(event, ResponseEnded)}
    for response, audio_s in length_s.items():
        tokens, frames = ended[response].output_text_tokens, ended[response].output_audio_tokens
        assert tokens is not None
        words = tokens - (ended[response].status != "completed")  # what was cut off lacks its last token
        assert frames == max(1, round(words * 3.125 / (3.05 * 1.3)))
        assert audio_s == pytest.approx(0.32 * frames)


def test_a_decoder_with_its_own_vocoder_is_whole_on_one_device() -> None:
    sheet, alone = costs(MING).datasheet, find_costs("H200", find_shape(MING), 1)
    assert sheet is not None
    assert {stage: sheet.shared_by(stage) for stage in sheet.shape.stages} == {
        "encoders": 1,
        "thinker": 2,
        "talker": 1,
    }
    assert costs(MING).stages["talker"] == alone.stages["talker"]
    assert costs(MING).stages["thinker"] != alone.stages["thinker"]
    with pytest.raises(ConfigError, match=r"device thinker needs .* \(--tensor-parallel 2\)"):
        engine_of(alone)


def prompts(model: str) -> dict[str, int]:
    said = AudioPart(bytes(4 * 16_000 * 2), 1)
    clip = VideoPart(b"", 160, 120, 4, 0.25, None, 2)
    render = SimPrompter(find_graph(node_of(model).graph)).render
    made = render(RenderPrompt(1, (Item("q", "user", (said, clip)),), True)).prompts
    return {
        "sound": made["thinker"].spans[0].length,
        "video": made["thinker"].spans[1].length,
        "talker": len(made["talker"].token_ids),
    }


def test_media_take_what_the_model_makes_of_them() -> None:
    """Two seconds at 25 tokens a second; two grids of 128 tokens of 32 x 32 pixels or more, or of 28 x 28;
    and a talker that is shown the turn, or not."""
    ming, qwen = prompts(MING), prompts(QWEN25)
    assert (ming["sound"], qwen["sound"]) == (50, 50)
    assert 2 * 128 <= ming["video"] < qwen["video"] < 2 * 200
    assert ming["talker"] < 10 < qwen["talker"]
