"""A checkpoint of parts: three directories read as one, and what each broken one is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from antiphon.checkpoint.demo import make_demo
from antiphon.checkpoint.files import open_checkpoint, open_directory
from antiphon.cli import app
from antiphon.core.errors import CheckpointError, ConfigError
from antiphon.core.model_source import PARTS, source_of
from antiphon.core.quantised import Quantised
from antiphon.engine.load import takes_media
from antiphon.graphs import find_graph
from antiphon.models.cascade.family import FAMILY
from fakes.quantised import write_gguf


@pytest.fixture
def broken(cascade_checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(cascade_checkpoint, tmp_path / "copy")


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        FAMILY.read_config(open_checkpoint(str(path)).config)
    return str(caught.value)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_tensors_go_by_their_part(cascade_checkpoint: Path):
    found = open_checkpoint(str(cascade_checkpoint))
    own = {part: load_file(cascade_checkpoint / part / "model.safetensors") for part in PARTS}
    assert set(found.tensors) == {f"{part}/{name}" for part, tensors in own.items() for name in tensors}
    names = ["voice/decoder.conv_pre.weight", "thinker/model.norm.weight"]
    for name, tensor in found.read(names):
        part, _, stored = name.partition("/")
        assert torch.equal(tensor, own[part][stored])
    assert found.writer == cascade_checkpoint / "thinker"
    assert found.generation == found.config["generation"]["thinker"]


def test_every_stage_finds_its_tensors(cascade_checkpoint: Path):
    found = open_checkpoint(str(cascade_checkpoint))
    config = FAMILY.read_config(found.config)
    for stage in find_graph("cascade").stages:
        found.require(FAMILY.tensor_shapes(stage.name, config))
        assert FAMILY.tensor_names(stage.name, config)


def test_weight_norm_by_its_older_names(cascade_checkpoint: Path, broken: Path):
    """As the released voices of transformers have it (facebook/mms-tts-*)."""
    file = broken / "voice" / "model.safetensors"
    older = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    assert "flow.flows.0.wavenet.in_layers.0.weight_g" in older
    save_file(older, file)
    there, here = open_checkpoint(str(broken)), open_checkpoint(str(cascade_checkpoint))
    names = FAMILY.tensor_names("voice", FAMILY.read_config(there.config))
    found, expected = dict(there.read(names)), dict(here.read(names))
    assert found.keys() == expected.keys() == set(names)
    assert all(torch.equal(found[name], expected[name]) for name in names)


def test_weight_norm_by_both_names(broken: Path):
    file = broken / "voice" / "model.safetensors"
    tensors, new = load_file(file), "flow.flows.0.wavenet.in_layers.0.parametrizations.weight.original0"
    older = new.replace("parametrizations.weight.original0", "weight_g")
    save_file({**tensors, older: tensors[new].clone()}, file)
    with pytest.raises(CheckpointError, match=f"1 twice \\({older}\\)"):
        open_checkpoint(str(broken))


def test_weight_norm_in_int8_is_refused(broken: Path):
    file = broken / "voice" / "model.safetensors"
    tensors, new = load_file(file), "flow.flows.0.wavenet.in_layers.0.parametrizations.weight.original1"
    older = new.replace("parametrizations.weight.original1", "weight_v")
    int8 = tensors.pop(new).to(torch.int8)
    save_file({**tensors, older: int8}, file)
    with pytest.raises(CheckpointError, match="is int8 without"):
        open_checkpoint(str(broken))


def test_parts_may_lie_elsewhere(cascade_checkpoint: Path, tmp_path: Path):
    content = {"model_type": "cascade", **{part: str(cascade_checkpoint / part) for part in PARTS}}
    (tmp_path / "config.json").write_text(json.dumps(content))
    there, here = open_checkpoint(str(tmp_path)), open_checkpoint(str(cascade_checkpoint))
    assert there.tensors == here.tensors
    assert there.parts == here.parts


def test_a_source_names_the_parts(cascade_checkpoint: Path):
    source = source_of({part: str(cascade_checkpoint / part) for part in PARTS})
    there, here = open_checkpoint(source), open_checkpoint(str(cascade_checkpoint))
    assert (there.tensors, there.parts) == (here.tensors, here.parts)
    assert there.config.items() <= here.config.items()
    assert there.source == source
    assert here.source == str(cascade_checkpoint)


def test_a_source_says_settings_too(cascade_checkpoint: Path):
    named = {part: str(cascade_checkpoint / part) for part in PARTS}
    found = open_directory(source_of({**named, "silent_tail": "false", "no_speech_threshold": "0.8"}))
    config = FAMILY.read_config(found.config)
    assert (config.silent_tail, config.transcriber.no_speech_threshold) == (False, 0.8)
    assert open_directory(found.source).config == found.config
    never = FAMILY.read_config(open_directory(source_of({**named, "no_speech_threshold": "1"})).config)
    assert never.transcriber.no_speech is None


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("silent_tail", "0", "silent_tail is 0; it must be true or false"),
        (
            "no_speech_threshold",
            "1.5",
            "no_speech_threshold is 1.5; it must be over 0 and at most 1, or null",
        ),
        ("no_speech_threshold", "true", "no_speech_threshold is True; it must be over 0"),
    ],
)
def test_a_setting_that_cannot_be(broken: Path, name: str, value: str, told: str):
    edit(broken / "config.json", **{name: json.loads(value)})
    assert told in refusal(broken)


def test_a_source_with_a_part_that_is_not_named_or_not_there(cascade_checkpoint: Path):
    named = {part: str(cascade_checkpoint / part) for part in PARTS}
    with pytest.raises(ConfigError, match="without voice"):
        open_directory(source_of({part: named[part] for part in PARTS[:2]}))
    with pytest.raises(CheckpointError, match="voice: 'nowhere' is neither a directory nor a hub id"):
        open_directory(source_of({**named, "voice": "nowhere"}))


@pytest.mark.parametrize(
    ("part", "given", "told"),
    [
        ("transcriber", "voice", "'vits' is not served as one .* it could be the voice. .* must be Whisper"),
        ("voice", "transcriber", "'whisper' .* it could be the transcriber. The voice must be VITS"),
        ("thinker", "transcriber", "'whisper' .* The thinker must be a text model"),
        ("thinker", ".", "'cascade' is not served as one .* The thinker must be a text model"),
        ("voice", "thinker", "'llama' is not served as one .* The voice must be VITS"),
    ],
)
def test_a_part_in_the_place_of_another(cascade_checkpoint: Path, part: str, given: str, told: str):
    named = {each: str(cascade_checkpoint / each) for each in PARTS}
    with pytest.raises(CheckpointError, match=f"{part}: {told}"):
        open_directory(source_of({**named, part: str(cascade_checkpoint / given)}))


@pytest.mark.parametrize("part", ["transcriber", "voice"])
def test_a_part_alone_is_told_to_be_one(
    cascade_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    with pytest.raises(CheckpointError) as refused:
        open_directory(str(cascade_checkpoint / part), takes_media=takes_media)
    assert f"the {part} of a cascade, and is not served alone" in str(refused.value)
    assert str(refused.value).endswith(f"Serve the cascade: {cascade_checkpoint}")
    moved = tmp_path / "alone"
    shutil.copytree(cascade_checkpoint / part, moved)
    for beside in (None, '{"model_type": "llama"}', "[]", "broken"):
        if beside is not None:
            (tmp_path / "config.json").write_text(beside)
        with pytest.raises(CheckpointError, match=r"alone\. Name all parts: transcriber=…,thinker=…,"):
            open_directory(str(moved), takes_media=takes_media)
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in (str(moved), "~/alone"):
        said = CliRunner().invoke(app, ["serve", named, "--port", "0"])
        assert said.exit_code == 1
        assert f"the {part} of a cascade, and is not served alone" in " ".join(said.output.split())
        assert "listening" not in said.output


def test_a_thinker_that_nobody_knows(broken: Path):
    edit(broken / "thinker" / "config.json", model_type="bert")
    with pytest.raises(CheckpointError, match="unknown model type 'bert'"):
        open_directory(str(broken), takes_media=takes_media)


def test_a_demo_is_stored_as_it_is_asked_for(tmp_path: Path):
    path = make_demo(tmp_path / "half", model="cascade", dtype="bfloat16")
    for part in PARTS:
        tensors = load_file(path / part / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_a_part_that_is_not_named_or_not_there(broken: Path):
    edit(broken / "config.json", voice=None)
    assert "'voice' must name a directory, a GGUF or a hub id" in refusal(broken)
    edit(broken / "config.json", voice="nowhere")
    said = refusal(broken)
    assert "voice: 'nowhere' is neither a directory nor a hub id" in said
    assert f"{broken / 'config.json'} names it; it was looked for at {broken / 'nowhere'} first" in said


@pytest.mark.parametrize("part", PARTS)
def test_a_part_without_its_config(broken: Path, part: str):
    (broken / part / "config.json").unlink()
    assert f"the {part} is not a model checkpoint" in refusal(broken)


def test_a_thinker_without_a_template(broken: Path):
    (broken / "thinker" / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="lacks a chat template"):
        open_directory(str(broken))


@pytest.mark.parametrize(
    ("part", "files", "told"),
    [
        ("transcriber", ["tokenizer.json"], "tokenizer.json"),
        ("transcriber", ["preprocessor_config.json"], "preprocessor_config.json"),
        ("thinker", ["tokenizer.json"], "tokenizer.json"),  # vocab.json and merges.txt are there
        ("voice", ["vocab.json"], "vocab.json"),
        ("voice", ["tokenizer_config.json"], "tokenizer_config.json"),
    ],
)
def test_a_part_without_what_its_stages_read(broken: Path, part: str, files: list[str], told: str):
    for file in files:
        (broken / part / file).unlink()
    with pytest.raises(CheckpointError, match=rf"{part} lacks {told}\. Copy the files from"):
        open_directory(str(broken))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (None, r"voice lacks phonemes\.safetensors"),
        ("{", r"phonemes\.json cannot be read as JSON"),
        ('{"network": {}, "dictionary": []}', r"phonemes\.json has no dictionary, second_dictionary"),
    ],
)
def test_phonemes_are_looked_at_before_anything_is_loaded(broken: Path, written: str | None, told: str):
    (broken / "voice" / "phonemes.json").write_text(written or "{}")
    if written is not None:
        (broken / "voice" / "phonemes.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=told):
        open_directory(str(broken))


@pytest.mark.parametrize(("key", "symbols"), [("phonemize", "phonemes"), ("is_uroman", "romanised text")])
def test_a_voice_of_anything_but_characters(broken: Path, key: str, symbols: str):
    edit(broken / "voice" / "tokenizer_config.json", **{key: True})
    with pytest.raises(CheckpointError, match=f"{key} is true, and nothing here makes {symbols} of text"):
        open_directory(str(broken))


@pytest.mark.parametrize(
    ("part", "changes", "told"),
    [
        ("transcriber", {"model_type": "wav2vec2"}, "transcriber: 'wav2vec2' is not served"),
        ("transcriber", {"activation_function": "relu"}, "transcriber: activation_function 'relu'"),
        ("thinker", {"model_type": "qwen3_omni_moe"}, "not a model that reads and writes text"),
        ("voice", {"model_type": "bark"}, "voice: 'bark' is not served"),
    ],
)
def test_a_part_of_another_kind(broken: Path, part: str, changes: dict[str, str], told: str):
    edit(broken / part / "config.json", **changes)
    assert told in refusal(broken)


@pytest.mark.parametrize(("part", "key"), [("transcriber", "d_model"), ("voice", "flow_size")])
def test_a_size_that_lacks(broken: Path, part: str, key: str):
    file = broken / part / "config.json"
    file.write_text(json.dumps({name: v for name, v in json.loads(file.read_text()).items() if name != key}))
    assert f"{part}: config.json has no '{key}'" in refusal(broken)


def test_a_transcript_begins_with_language_and_task_where_the_model_has_several(broken: Path):
    file = broken / "transcriber" / "generation_config.json"
    several = {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": 7, "<|de|>": 8},
        "task_to_id": {"transcribe": 9},
    }
    edit(file, **several)
    plain = json.loads(file.read_text())
    start, end = plain["decoder_start_token_id"], plain["no_timestamps_token_id"]
    read = FAMILY.read_config(open_checkpoint(str(broken)).config).transcriber
    assert read.prompt == (start, 7, 9, end)
    edit(file, language="de")
    assert FAMILY.read_config(open_checkpoint(str(broken)).config).transcriber.prompt == (start, 8, 9, end)
    edit(file, language="xx")
    assert "has no language <|xx|>" in refusal(broken)


def test_the_thinker_may_be_a_gguf(
    cascade_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = write_gguf(cascade_checkpoint / "thinker", tmp_path / "some.gguf", "Q8_0")
    named = {part: str(cascade_checkpoint / part) for part in PARTS} | {"thinker": str(file)}
    found = open_checkpoint(source_of(named), takes_media=takes_media)
    config = FAMILY.read_config(found.config)
    for stage in ("thinker", "transcriber", "voice"):
        found.require(FAMILY.tensor_shapes(stage, config))
    again = open_checkpoint(found.source, takes_media=takes_media)
    for opened in (found, again):
        ((_, norm), (_, embedding)) = opened.read(
            ["thinker/model.norm.weight", "thinker/model.embed_tokens.weight"]
        )
        kinds = {type(tensor) for tensor in (norm, embedding)}
        assert kinds == {torch.Tensor, Quantised}
