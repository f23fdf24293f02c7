"""Reading deployments: bases merged, mistakes located, hostile files refused in words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.assembly.deployment import Deployment
from antiphon.assembly.deployment_file import deployment_names, merge, read_deployment
from antiphon.core.errors import ConfigError
from assembly.deployed import written

SHIPPED = ("cascade", "demo", "liveserve-8gpu", "one-gpu")


def test_what_ships() -> None:
    assert deployment_names() == SHIPPED
    assert all(read_deployment(name).description for name in SHIPPED)


def test_a_base_below_another(tmp_path: Path) -> None:
    """A file on a file in another folder on one that ships: keys merge, lists and null replace."""
    (tmp_path / "site").mkdir()
    written(
        tmp_path / "site" / "house.yaml",
        {"base": "one-gpu", "limits": {"max_sessions": 7}, "stages": {"thinker": {"max_rows": 9}}},
    )
    mine = written(
        tmp_path / "mine.yaml",
        "base: site/house.yaml\ndtype: null\nstages: {thinker: {step_tokens: 64}}\n"
        "edges: {talker->code2wav: {chunk: 3}}",
    )
    read = read_deployment(mine)
    assert (read.limits.max_sessions, read.limits.max_context_tokens) == (7, 32768)
    thinker = read.stages["thinker"]
    assert (thinker.max_rows, thinker.step_tokens, thinker.memory_fraction) == (9, 64, 0.75)
    assert read.dtype == "auto"
    assert read.edges["talker -> code2wav"].chunk == 3
    assert read.base == "site/house.yaml"


def test_parts_of_a_cascade(tmp_path: Path) -> None:
    """Directories are relative to the file that names them, and hub ids are hub ids."""
    (tmp_path / "site" / "org" / "ears").mkdir(parents=True)
    parts = {"transcriber": "org/ears", "thinker": "Qwen/Qwen3-1.7B", "voice": "voice"}
    house = {"base": "cascade", "parts": parts}
    written(tmp_path / "site" / "house.yaml", house)
    mine = written(tmp_path / "mine.yaml", {"base": "site/house.yaml", "parts": {"voice": "../mine"}})
    read = read_deployment(mine)
    assert read.is_cascade
    assert read.parts.model_dump(exclude_none=True) == {
        "transcriber": str(tmp_path / "site" / "org" / "ears"),
        "thinker": "Qwen/Qwen3-1.7B",
        "voice": str(tmp_path.parent / "mine"),
    }
    named = read.parts.model_dump(exclude_none=True)
    assert read.source() == ",".join(f"{part}={where}" for part, where in named.items())
    assert "thinker=org/other," in read.source("thinker=org/other")
    assert not read_deployment("demo").is_cascade
    assert read_deployment("cascade").source() == ""
    assert read_deployment("cascade").source("checkpoints/talk") == "checkpoints/talk"


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"parts": {"voice": None}}, "", "a cascade without voice: name transcriber"),
        ({"model": "org/name"}, "", "`model` is 'org/name', and `parts` names transcriber, thinker, voice"),
        ({}, "org/name", "the model 'org/name' is given, and `parts` names transcriber"),
        ({}, "thinker=", "thinker is empty"),
    ],
)
def test_parts_that_cannot_be(tmp_path: Path, changes: dict[str, Any], given: str, words: str) -> None:
    parts = dict.fromkeys(("transcriber", "thinker", "voice"), "org/x")
    written(tmp_path / "house.yaml", {"base": "cascade", "parts": parts})
    mine = read_deployment(written(tmp_path / "mine.yaml", {"base": "house.yaml", **changes}))
    with pytest.raises(ConfigError, match=words):
        mine.source(given)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"vioce": "x"}, r"mine.yaml:2: parts.vioce: no such key; did you mean voice"),
        ({"voice": 3}, r"mine.yaml:2: parts.voice: input should be a valid string \(it is 3\)"),
        ({"silent_tail": 1}, r"mine.yaml:2: parts.silent_tail: input should be a valid boolean"),
        ({"no_speech_threshold": 2}, r"mine.yaml:2: parts.no_speech_threshold: .* less than or equal to 1"),
        ({"voice": ""}, r"mine.yaml:2: parts.voice: .* at least 1 character"),
        ("x", r"mine.yaml:1: parts: "),
    ],
)
def test_parts_that_are_written_wrongly(tmp_path: Path, parts: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_deployment(written(tmp_path / "mine.yaml", {"parts": parts}))


TREES = st.recursive(
    st.integers(0, 9) | st.sampled_from([[], [1, 2]]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {at: leaf for key, value in tree.items() for at, leaf in leaves(value, (*path, key)).items()}


@given(MAPPINGS, MAPPINGS)
def test_every_leaf_is_of_one_of_the_two(base: dict[str, Any], over: dict[str, Any]) -> None:
    """What is written above wins; what is left of the base is what nothing above stands on."""
    merged, above = leaves(merge(base, over)), leaves(over)
    for path, leaf in above.items():
        assert merged[path] == leaf
    below = leaves(base)
    for path, leaf in merged.items():
        assert path in above or below[path] == leaf
    for path in below:
        covered = any(path[: len(at)] == at or at[: len(path)] == path for at in above)
        assert covered or path in merged


@given(MAPPINGS, MAPPINGS)
def test_merging_twice_is_merging_once(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = repr((base, over))
    merged = merge(base, over)
    assert merge(merged, over) == merged
    assert merge(base, {}) == merge(base, base) == base
    assert merge({}, over) == over
    assert repr((base, over)) == before


@given(MAPPINGS, st.sampled_from("abc"))
def test_null_takes_a_key_away(base: dict[str, Any], key: str) -> None:
    assert merge(base, {key: None}) == {name: value for name, value in base.items() if name != key}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "stages: {thinker: {max_row: 3}}",
            "deployment.yaml:1: stages.thinker.max_row: no such key; did you "
            "mean max_rows? Keys of stages.thinker: max_rows, step_rows",
        ),
        (
            "\n\nmax_sessions: 3",
            "deployment.yaml:3: max_sessions: no such key; did you mean limits.max_sessions",
        ),
        ("zzz: 3", "zzz: no such key. Keys of a deployment: base"),
        (
            "stages:\n  talker: {replicas: 0}",
            "deployment.yaml:2: stages.talker.replicas: input should be greater than or equal to 1 (it is 0)",
        ),
        ("stages: {talker: {max_rows: yes}}", "max_rows: input should be a valid integer (it is True)"),
        ("stages: {talker: {max_rows: '8'}}", "max_rows: input should be a valid integer (it is '8')"),
        ("devices: {a: {memory_gib: .inf}}", "memory_gib: input should be a finite number"),
        ("devices: {a: {device: gpu}}", "devices.a.device: string should match"),
        ("devices: {'../x': {}}", "devices.../x: string should match"),
        ("stages: {talker: {device: a, devices: [b]}}", "stages.talker: has `device` and `devices`"),
        (
            "stages: {thinker: {replicas: 2, prefill: 2}}",
            "has prefill 2 of 2 replicas, which leaves none to write; raise `replicas`",
        ),
        ("stages: {talker: {devices: [a, b]}}", "has 2 devices for 1 replicas; raise `replicas`"),
        ("edges: {thinker: {}}", "edges.thinker: string should match"),
        ("edges: {'a -> b': {connector: tpc}}", "input should be 'shared_memory' or 'tcp' (it is 'tpc')"),
        ("dtype: int8", "dtype: input should be 'auto', 'float32'"),
        ("stages: [thinker]", "stages: input should be a valid dictionary"),
        ("a: b: c", "deployment.yaml:1: not valid YAML: mapping values are not allowed here"),
        ("a: {", "not valid YAML"),
        ("", "a deployment is a mapping"),
        ("[1, 2]", "a deployment is a mapping"),
        ("x: 1\nx: 2", "deployment.yaml:2: x is there twice; keep one"),
        ("edges: {'a->b': {}, 'a -> b': {}}", "a -> b is there twice"),
        ("1: 2", "a key must be text, and '1' is not"),
        ("? [a]\n: 2", "a key must be text"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML: could not determine a constructor"),
        ("a: &a [*a]", "values with its aliases"),
        (
            "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9 if i else ['x'])}]" for i in range(9)),
            "over 100000 values with its aliases",
        ),
        ("# " + "x" * (1 << 20), "over 1048576 bytes"),
        ("base: [x]", "deployment.yaml:1: base is ['x']; it must be a name or a path"),
        ("base: one-gpus", "no deployment 'one-gpus'; did you mean one-gpu? There are cascade"),
        ("base: ../none.yaml", "none.yaml: can't be read as a deployment (No such file or directory)"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_deployment(written(tmp_path / "deployment.yaml", text))
    assert words in str(caught.value)


def test_every_mistake_is_said_where_it_stands(tmp_path: Path) -> None:
    written(tmp_path / "below.yaml", "depth: 7\nstages:\n  talker: {max_rows: 0}")
    with pytest.raises(ConfigError) as caught:
        read_deployment(
            written(tmp_path / "above.yaml", "base: below.yaml\nstages: {talker: {replicas: -1}}")
        )
    said = str(caught.value).splitlines()
    assert [line.rpartition("/")[2].split(": ")[0] for line in said] == [
        "below.yaml:1",
        "below.yaml:3",
        "above.yaml:2",
    ]


def test_bases_in_a_circle(tmp_path: Path) -> None:
    written(tmp_path / "b.yaml", "base: a.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml -> .*b\.yaml -> .*a\.yaml go in a circle"):
        read_deployment(written(tmp_path / "a.yaml", "base: b.yaml"))


def test_no_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't be read as a deployment"):
        read_deployment(str(tmp_path / "x.yaml"))


@given(st.text(max_size=60))
def test_any_text_is_a_deployment_or_an_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(ConfigError):
        assert isinstance(read_deployment(str(path)), Deployment)


@pytest.mark.parametrize(
    "said",
    [
        *("reading: 0", "reading: -1", "reading: 1.0e9", "reading: true"),
        *("listening: .nan", "listening: fast", "streamed: 12", "whole: reading"),
    ],
)
def test_readers_that_there_are_not(tmp_path: Path, said: str) -> None:
    key = said.partition(":")[0]
    with pytest.raises(ConfigError, match=f"readers.{key}"):
        read_deployment(written(tmp_path / "d.yaml", f"readers: {{{said}}}"))
