"""The ear: the network equals the package's own, and turns are found in sound."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from antiphon.core.errors import ConfigError
from antiphon.core.turns import ReplyPaused, ReplyResumed, TurnEvent, TurnPaused, TurnStarted, TurnStopped
from antiphon.server import vad
from antiphon.server.listening import turn_detector
from antiphon.server.vad import VoiceActivity, vad_model
from antiphon.server.vad_weights import torchscript_weights
from antiphon.wire.turn_detection import TurnDetection
from voice import pcm16, silence, voice

SCENE = np.concatenate([silence(0.5), voice(1.2), silence(1.0), voice(0.8, pitch_hz=200.0), silence(1.0)])


def feed(asked: TurnDetection, audio: bytes, sizes: list[int], reply: bool = False) -> list[TurnEvent]:
    detector = turn_detector(asked)
    ends = np.cumsum([0, *sizes]).tolist()
    return [event for a, b in pairwise(ends) for event in detector.feed(audio[a:b], reply)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_probabilities_are_the_package_s_own() -> None:
    import torch

    spec = find_spec("silero_vad")
    assert spec is not None
    reference = torch.jit.load(str(Path(next(iter(spec.submodule_search_locations or []))) / vad.WEIGHTS))
    samples = np.concatenate([silence(0.3, 16_000), voice(2.0, 16_000), silence(0.5, 16_000)])
    frames = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    with torch.inference_mode():
        wanted = [reference(torch.from_numpy(frame), 16_000).item() for frame in frames]
    got = VoiceActivity(vad_model()).feed(samples)
    assert max(wanted) > 0.9
    np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_turns_in_sound() -> None:
    audio = pcm16(SCENE)
    started, paused, stopped, again, _, last = feed(TurnDetection(), audio, [len(audio)])
    assert isinstance(paused, TurnPaused)
    assert paused.said_end_ms == pytest.approx(1700 + 200, abs=150)
    assert isinstance(started, TurnStarted)
    assert started.audio_start_ms == pytest.approx(500 - 300, abs=80)
    assert isinstance(stopped, TurnStopped)
    assert stopped.audio_end_ms == pytest.approx(1700 + 500, abs=150)
    assert isinstance(again, TurnStarted)
    assert again.audio_start_ms >= stopped.audio_end_ms
    assert isinstance(last, TurnStopped)


@pytest.mark.parametrize("size", [1, 47, 960, 4801])
def test_any_chunks_give_the_same_turns(size: int) -> None:
    audio = pcm16(SCENE[: 24_000 * 3])[: 40_000 if size == 1 else None]
    whole = feed(TurnDetection(silence_duration_ms=100), audio, [len(audio)])
    sizes = [size] * (len(audio) // size) + [len(audio) % size]
    assert feed(TurnDetection(silence_duration_ms=100), audio, sizes) == whole
    assert whole


def test_a_backchannel_in_sound() -> None:
    audio = pcm16(np.concatenate([silence(0.3), voice(0.25), silence(0.6)]))
    asked = TurnDetection(min_speech_ms=600)
    assert feed(asked, audio, [len(audio)], reply=True) == [ReplyPaused(), ReplyResumed()]


def test_semantic_detection_ends_a_turn_too() -> None:
    audio = pcm16(SCENE)
    events = feed(TurnDetection(kind="semantic_vad", eagerness="high"), audio, [len(audio)])
    assert [type(event) for event in events][:3] == [TurnStarted, TurnPaused, TurnStopped]


def test_settings_change_in_the_middle() -> None:
    detector = turn_detector(TurnDetection(silence_duration_ms=5000))
    detector.feed(pcm16(np.concatenate([voice(1.0), silence(0.4)])), False)
    detector.configure(TurnDetection(silence_duration_ms=200))
    (event,) = detector.feed(pcm16(silence(0.1)), False)
    assert isinstance(event, TurnStopped)
    assert detector.end() == []


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; from antiphon.server.vad import vad_model as m; m(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vad.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install silero-vad"):
        vad.vad_model.__wrapped__()


def test_a_file_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    import pickle

    file = tmp_path / "bad.jit"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("bad/data.pkl", pickle.dumps(print))
    with pytest.raises(pickle.UnpicklingError, match="does not need"):
        torchscript_weights(file)
