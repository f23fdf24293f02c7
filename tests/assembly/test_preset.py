"""A preset names one policy for each decision, with options, or says what is wrong with it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import pytest

from antiphon.assembly.deployment_file import read_deployment
from antiphon.assembly.guard import Guard
from antiphon.assembly.node import Node
from antiphon.assembly.preset import (
    Preset,
    is_path,
    preset_label,
    preset_names,
    read_preset,
    replayable,
    resolved,
    schedules_by_reading,
    with_preset,
)
from antiphon.assembly.registry import DECISIONS
from antiphon.core.config import NodeConfig
from antiphon.core.errors import ConfigError
from fakes.world import toy_config

HOLD = """
from antiphon.policy.base import NO_HOLD

class Hold:
    def __init__(self, lead_s: float = 2.0) -> None:
        self.lead_s = lead_s

    def decide(self, view, now):
        return NO_HOLD

class Other(Hold):
    pass

class Both:
    def decide_step(self, view, budget, now): ...
    def decide_pace(self, view, now): ...

class Needing(Both):
    together = "step", "pace"
    by_reading = True

class Wrong(Both):
    together = ("devise",)
"""
LINES = {
    "step": "fcfs",
    "pace": "{policy: hold.py:Hold, lead_s: 3}",
    "admission": "unlimited",
    "device": "round-robin",
    "replica": "sticky",
    "evict": "lru",
    "write": "write-back",
    "fetch": "on-demand",
}


def mine(folder: Path, **others: str) -> str:
    """A preset of one's own beside its policy."""
    (folder / "hold.py").write_text(HOLD)
    path = folder / "mine.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in {**LINES, **others}.items() if value))
    return str(path)


TOKENFLOW = dict.fromkeys(("step", "pace", "evict", "write", "fetch"), "token-buffer")
FALLS_BACK = "{policy: token-buffer, fallback: true}"
TALKER = "{policy: token-buffer, stages: {talker: {policy: %s}}}"


@pytest.mark.parametrize(
    ("others", "what"),
    [
        ({"step": FALLS_BACK}, "step is token-buffer (fallback: True) and pace is token-buffer, but"),
        ({"pace": "unpaced"}, "step is token-buffer and pace is unpaced, but"),
        ({"fetch": "on-demand"}, "step is token-buffer and fetch is on-demand, but"),
        ({"write": "{policy: token-buffer, observe: true}"}, "write is token-buffer (observe: True), but"),
        ({"step": TALKER % "fcfs"}, "pace is token-buffer and step is fcfs (for stage talker), but"),
    ],
)
def test_what_a_policy_takes_as_one_object_is_given_to_one(
    tmp_path: Path, others: dict[str, str], what: str
) -> None:
    path = mine(tmp_path, **TOKENFLOW | others)
    with pytest.raises(ConfigError) as error:
        read_preset(path)
    assert what in str(error.value)
    assert "token-buffer takes step, pace, evict, write, fetch as one object; write the same" in str(
        error.value
    )
    read_preset(mine(tmp_path, **dict.fromkeys(TOKENFLOW, FALLS_BACK)))


@pytest.mark.parametrize("stage", ["code2wav", "encoders", "voice"])
def test_what_a_stage_never_decides_needs_no_policy_of_its_own(tmp_path: Path, stage: str) -> None:
    """A stage without KV: only steps and paces are to be alike."""
    step = f"{{policy: token-buffer, stages: {{{stage}: {{policy: fcfs}}}}}}"
    pace = f"{{policy: token-buffer, stages: {{{stage}: {{policy: unpaced}}}}}}"
    read_preset(mine(tmp_path, **TOKENFLOW | {"step": step, "pace": pace}))
    with pytest.raises(ConfigError, match="pace is token-buffer and step is fcfs"):
        read_preset(mine(tmp_path, **TOKENFLOW | {"step": step}))


def test_a_policy_of_ones_own_may_need_several_decisions_too(tmp_path: Path) -> None:
    both = "hold.py:Needing"
    read_preset(mine(tmp_path, step=both, pace=both))
    with pytest.raises(ConfigError, match=r"mine.yaml:1: step is hold.py:Needing and pace is unpaced, but"):
        read_preset(mine(tmp_path, step=both, pace="unpaced"))
    with pytest.raises(ConfigError, match=r"`together` of hold.py:Wrong: no decision 'devise'"):
        read_preset(mine(tmp_path, step="hold.py:Wrong"))


def test_a_policy_of_ones_own_says_that_it_orders_steps_by_reading(tmp_path: Path) -> None:
    both = "hold.py:Needing"
    assert schedules_by_reading(read_preset(mine(tmp_path, step=both, pace=both)))
    observed = "{policy: hold.py:Needing, observe: true}"
    assert not schedules_by_reading(read_preset(mine(tmp_path, step=observed, pace=observed)))


def test_every_preset_that_ships_makes_a_node() -> None:
    assert "baseline" in preset_names()
    for name in preset_names():
        node = Node(msgspec.structs.replace(toy_config(), preset=name))
        node.check_integrity()
        assert node.config.policies.keys() == set(DECISIONS)
        assert all(not choice.digests for choice in node.config.policies.values())


def takes(node: Node, unit: str, decision: str) -> str:
    """The policy that takes a decision of a unit."""
    (name,) = (one.policy for one in node.guard.shown() if one.unit == unit and decision in one.decisions)
    return name


def test_a_preset_of_ones_own_with_a_policy_in_a_file_beside_it(tmp_path: Path) -> None:
    path = mine(tmp_path)
    choice = read_preset(path)["pace"]
    assert choice.policy == f"{tmp_path}/hold.py:Hold"
    assert choice.of("talker") == (choice.policy, {"lead_s": 3})
    assert list(choice.digests) == [choice.policy]
    node = Node(with_preset(toy_config(), path))
    assert takes(node, "thinker", "pace") == "Hold"
    assert takes(node, "thinker", "step") == "fcfs"


def test_a_path_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert read_preset("mine.yaml")["pace"].policy == f"{tmp_path}/hold.py:Hold"
    assert read_preset("./mine.yaml").keys() == set(DECISIONS)


def test_in_a_deployment_file_it_is_relative_to_that_file(tmp_path: Path) -> None:
    path = mine(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "base.yaml").write_text("preset: ../mine.yaml\n")
    (tmp_path / "there.yaml").write_text("base: site/base.yaml\n")
    assert read_deployment(str(tmp_path / "there.yaml")).preset == path
    (tmp_path / "named.yaml").write_text("preset: fcfs\n")
    assert read_deployment(str(tmp_path / "named.yaml")).preset == "fcfs"


def test_a_stage_has_options_and_policies_of_its_own(tmp_path: Path) -> None:
    stages = "{talker: {lead_s: 1}, thinker: {policy: hold.py:Other}}"
    path = mine(tmp_path, pace=f"{{policy: hold.py:Hold, lead_s: 3, stages: {stages}}}")
    choice = read_preset(path)["pace"]
    assert choice.of("talker")[1] == {"lead_s": 1}
    assert choice.of("thinker") == (f"{tmp_path}/hold.py:Other", {})
    assert len(choice.digests) == 2
    assert takes(Node(with_preset(toy_config(), path)), "thinker", "pace") == "Other"


def test_the_same_policy_with_the_same_options_is_one_object_in_a_unit(tmp_path: Path) -> None:
    path = mine(tmp_path, step="hold.py:Both", pace="hold.py:Both")
    node = Node(with_preset(toy_config(), path))
    made = {one.decision: one.policy for one in node.guard._watched if one.unit == "thinker"}
    others = {one.decision: one.policy for one in node.guard._watched if one.unit == "talker"}
    assert made["step"] is made["pace"]
    assert made["step"] is not others["step"], "each unit has its own"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({"pace": ""}, "mine.yaml: no policy for pace; each decision needs exactly one"),
        ({"pcae": "unpaced"}, r"mine.yaml:9: no decision 'pcae'; did you mean pace\? There are step, pace"),
        ({"step": "fcsf"}, r"mine.yaml:1: step: no policy 'fcsf'; did you mean fcfs\?"),
        ({"pace": "[unpaced]"}, r"mine.yaml:2: pace: give a policy's name, or \{policy: name"),
        ({"pace": "{lead_s: 2}"}, "mine.yaml:2: pace: give a policy's name"),
        ({"pace": "{policy: hold.py:Hold, laed_s: 2}"}, r"no option 'laed_s'; did you mean lead_s\?"),
        (
            {"pace": "{policy: hold.py:Hold, stages: {takler: {}}}"},
            r"no stage 'takler'; did you mean talker\?",
        ),
        ({"pace": "{policy: hold.py:Hold, stages: 3}"}, "`stages` maps stages to options"),
        ({"step": "{policy: fcfs, stages: {talker: fcfs}}"}, r"\{talker: \{policy: fcfs\}\}"),
        ({"pace": "hold.py"}, "say which class of that file, such as .*hold.py:MyPolicy"),
        (
            {"pace": "{policy: hold.py:Hold, stages: {talker: {lead_s: x}}}"},
            r"lead_s is 'x': .* \(for stage talker\)",
        ),
        ({"device": "{policy: round-robin, stages: {talker: {}}}"}, "device: it is decided among stages"),
        ({"evict": "lru\nevict: lru"}, "mine.yaml:7: evict is there twice; keep one"),
        ({"evict": "!!python/object/apply:os.system [true]"}, "mine.yaml:6: not valid YAML"),
        ({"evict": "lru\n7: x"}, "a key must be text"),
        ({"evict": "{"}, "not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_decision(
    lines: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        read_preset(mine(tmp_path, **lines))
    assert str(raised.value).startswith("preset ")


def test_what_is_no_preset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no preset 'basline'; did you mean baseline\?"):
        read_preset("basline")
    with pytest.raises(ConfigError, match=r"preset \.\./secret: can't be read as a preset"):
        read_preset("../secret")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="a preset maps each decision to a policy; this is not"):
        read_preset(str(tmp_path / "list.yaml"))
    (tmp_path / "big.yaml").write_text("#" * (2 << 20))
    with pytest.raises(ConfigError, match="which no preset needs"):
        read_preset(str(tmp_path / "big.yaml"))
    assert (is_path("a/b"), is_path("a.yml"), is_path("fcfs")) == (True, True, False)
    assert preset_label("/x/mine.yaml") == "mine"


# -- records -------------------------------------------------------------------------------------


def recorded(config: NodeConfig) -> NodeConfig:
    """As a record's header gives it back."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(resolved(config)), type=NodeConfig)


def test_a_record_of_policies_that_ship_replays_by_itself() -> None:
    config = recorded(toy_config())
    assert config.policies
    assert replayable(config) == config


def test_a_record_of_ones_own_policies_replays_where_they_are_named_and_the_same(tmp_path: Path) -> None:
    served, here = tmp_path / "served", tmp_path / "here"
    for folder in (served, here):
        folder.mkdir()
    config = recorded(with_preset(toy_config(), mine(served)))
    path = mine(here)
    shutil.rmtree(served)
    assert replayable(config, path).policies["pace"].policy == f"{here}/hold.py:Hold"
    with pytest.raises(
        ConfigError, match=r"recorded with hold.py:Hold; code that a record names is not loaded"
    ):
        replayable(config)
    (here / "hold.py").write_text(HOLD + "#")
    with pytest.raises(ConfigError, match=r"pace: the source of policy hold.py:Hold has changed since"):
        replayable(config, path)
    with pytest.raises(
        ConfigError, match=r"recorded with hold.py:Hold \(lead_s: 3\), and preset .* \(lead_s: 4\)"
    ):
        replayable(config, mine(here, pace="{policy: hold.py:Hold, lead_s: 4}"))
    with pytest.raises(ConfigError, match="and preset baseline says"):
        replayable(config, "baseline")


def test_a_record_cannot_have_code_run(tmp_path: Path) -> None:
    config = recorded(toy_config())
    crime = {"args": ["touch", str(tmp_path / "gone")]}
    for policy in ("subprocess:Popen", f"{tmp_path}/x.py:X"):
        choice = msgspec.structs.replace(config.policies["pace"], policy=policy, options=crime)
        with pytest.raises(ConfigError, match="code that a record names is not loaded"):
            replayable(msgspec.structs.replace(config, policies={**config.policies, "pace": choice}))
    with pytest.raises(ConfigError, match="code that a record names is not loaded"):
        replayable(msgspec.structs.replace(config, policies={}, preset=mine(tmp_path)))
    assert not (tmp_path / "gone").exists()


def test_a_node_refuses_a_source_that_changed_after_it_was_looked_up(tmp_path: Path) -> None:
    config = with_preset(toy_config(), mine(tmp_path))
    (tmp_path / "hold.py").write_text(HOLD + "#")
    with pytest.raises(ConfigError, match="has changed since"):
        Node(config)


ODD = """
import sys
from antiphon.policy.prefill_first import PrefillFirst

class Any_(PrefillFirst):
    def __init__(self, x=None): pass

class Exits(PrefillFirst):
    def __init__(self): sys.exit(0)

class BadHint(PrefillFirst):
    def __init__(self, x: "1/0" = 1): pass

class Meta(type):
    @property
    def __signature__(self): raise RuntimeError("sig")

class Signed(PrefillFirst, metaclass=Meta): pass

class NoDecide(PrefillFirst):
    @property
    def decide(self): raise RuntimeError("decide")

class NoName(PrefillFirst):
    @property
    def name(self): raise RuntimeError("name")
"""


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("{policy: odd.py:Any_, x: 2024-01-01}", ":1: step.x is a date, which no record can hold"),
        ("{policy: odd.py:Any_, x: !!set {a, b}}", "step.x is a set"),
        ("{policy: odd.py:Any_, x: !!omap [a: 1]}", "step.x[0] is a tuple"),
        ("{policy: odd.py:Any_, x: {y: [.nan]}}", "step.x.y[0] is nan"),
        ("{policy: odd.py:Any_, stages: {thinker: {x: .nan}}}", "step.stages.thinker.x is nan"),
        ("{policy: odd.py:Any_, x: 1" + "0" * 60 + "}", "step.x is a number of over 64 bits"),
        ('{policy: odd.py:Any_, x: "\\ud800"}', "step.x is '\\ud800', which is not text"),
        ("{policy: fcfs, x: " + "[" * 3000 + "]" * 3000 + "}", "nested too deep"),
        ("odd.py:Exits", "step: odd.py:Exits cannot be made: SystemExit: 0"),
        ("odd.py:BadHint", "its options cannot be read (division by zero)"),
        ("odd.py:Signed", "its options cannot be read (sig)"),
        ("odd.py:NoDecide", "cannot be made: RuntimeError: decide"),
        ("odd.py:NoName", "cannot be made: RuntimeError: name"),
        ("exits.py:A", "cannot be loaded: SystemExit: 0"),
        ('"a\\0.py:A"', "is not a path (embedded null byte)"),
        ("~nobodyx/x.py:A", "is not a path"),
    ],
)
def test_odd_options_and_code_are_refused_in_words(step: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    text = f"step: {step}\npace: unpaced\nadmission: unlimited\ndevice: round-robin\nreplica: sticky\n"
    path = tmp_path / "odd.yaml"
    path.write_text(text + "evict: lru\nwrite: write-back\nfetch: on-demand\n")
    with pytest.raises(ConfigError) as caught:
        read_preset(str(path))
    assert said in str(caught.value)


def test_the_digest_is_of_what_was_run(tmp_path: Path) -> None:
    """The file writes itself anew while it is run: what is made later is another policy, and is refused."""
    own = tmp_path / "own.py"
    text = "from pathlib import Path\nfrom antiphon.policy.fcfs import Fcfs\nclass Own(Fcfs): pass\n"
    own.write_text(text + "Path(__file__).write_text('class Own: decide = print')\n")
    was = hashlib.blake2b(own.read_bytes(), digest_size=16).hexdigest()
    names = "pace: unpaced\nadmission: unlimited\ndevice: round-robin\nreplica: sticky\n"
    path = tmp_path / "own.yaml"
    path.write_text(f"step: own.py:Own\n{names}evict: lru\nwrite: write-back\nfetch: on-demand\n")
    choices = read_preset(str(path))
    assert list(choices["step"].digests.values()) == [was]
    with pytest.raises(ConfigError, match="has changed since"):
        Preset(choices, Guard())._made("step", "u", "", {})


def test_models_share_a_preset_with_options_for_stages_of_any(tmp_path: Path) -> None:
    preset = mine(
        tmp_path, pace="{policy: hold.py:Hold, stages: {talker: {lead_s: 1}, token2wav: {lead_s: 2}}}"
    )
    written = msgspec.structs.replace(toy_config(), graph="text")
    for config in (toy_config(), written):
        assert with_preset(config, preset).policies["pace"].of("talker")[1] == {"lead_s": 1}


def test_deployments_and_presets_are_told_apart(tmp_path: Path) -> None:
    deployment = tmp_path / "two.yaml"
    deployment.write_text("preset: fcfs\nlimits: {max_sessions: 3}\n")
    with pytest.raises(
        ConfigError,
        match=r"two.yaml is a deployment, which names its own preset: give it as --config; `antiphon",
    ):
        read_preset(str(deployment))
    path = mine(tmp_path)
    for written in (Path(path).read_text(), Path(path).read_text() + "observe: true\n"):
        Path(path).write_text(written)
        with pytest.raises(ConfigError, match=r"mine.yaml is a preset: give it as --preset"):
            read_deployment(path)
