"""Voice activity: the probability that a person speaks, for every 32 ms. Silero VAD v6, on its own weights.

It runs in the server's process, beside the socket that brings the audio, on numpy alone: that process stays
free of torch and of model families, and the network is so small (0.7 million multiplications a frame) that
calls into a larger library would cost more than the arithmetic.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np

from antiphon.core.errors import ConfigError
from antiphon.server.vad_weights import Floats, torchscript_weights

FRAME_SAMPLES = 512
"""Samples of a frame, at 16 kHz."""
CONTEXT_SAMPLES = 64
"""The end of the frame before, shown again."""
REFLECTED_SAMPLES = 64
WINDOW_SAMPLES, HOP_SAMPLES, NUM_BINS = 256, 128, 129
HIDDEN = 128
WEIGHTS = "data/silero_vad.jit"
"""What `silero_vad.load_silero_vad()` loads by default; the safetensors file beside it is another model."""


class VadModel:
    """The network: spectrum, four convolutions, one LSTM cell. No state of its own, so sessions share it."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self._spectrum = np.ascontiguousarray(weights["stft.forward_basis_buffer"][:, 0].T)
        convs = [f"encoder.{i}.reparam_conv" for i in range(4)]
        self._convs = [(_taps(weights[f"{name}.weight"]), weights[f"{name}.bias"]) for name in convs]
        rnn = "decoder.rnn"
        joined = np.concatenate([weights[f"{rnn}.weight_ih"], weights[f"{rnn}.weight_hh"]], 1)
        self._gates = np.ascontiguousarray(joined.T)
        self._gates_bias = weights[f"{rnn}.bias_ih"] + weights[f"{rnn}.bias_hh"]
        self._out = weights["decoder.decoder.2.weight"].reshape(-1)
        self._out_bias = float(weights["decoder.decoder.2.bias"].item())

    def step(self, window: Floats, h: Floats, c: Floats) -> tuple[float, Floats, Floats]:
        """window float32 [576], context and frame; h, c float32 [128] -> probability, next h and c."""
        padded = np.concatenate([window, window[-2 : -2 - REFLECTED_SAMPLES : -1]])
        frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW_SAMPLES)[::HOP_SAMPLES]
        waves = frames @ self._spectrum
        x = np.sqrt(waves[:, :NUM_BINS] ** 2 + waves[:, NUM_BINS:] ** 2)
        for (taps, bias), stride in zip(self._convs, (1, 2, 2, 1), strict=True):
            x = _conv(x, taps, bias, stride)
        gates = np.concatenate([x[0], h]) @ self._gates + self._gates_bias
        i, f, g, o = gates.reshape(4, HIDDEN)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        logit = float(np.maximum(h, 0.0) @ self._out) + self._out_bias
        return float(1.0 / (1.0 + np.exp(-logit))), h, c


class VoiceActivity:
    """One stream's state: what the network remembers, and samples that don't fill a frame yet."""

    def __init__(self, model: VadModel) -> None:
        self._model = model
        self._h = np.zeros(HIDDEN, np.float32)
        self._c = np.zeros(HIDDEN, np.float32)
        self._samples = np.zeros(CONTEXT_SAMPLES, np.float32)

    def feed(self, samples: Floats) -> list[float]:
        """float32 [n] at 16 kHz -> a probability for every frame that is now full."""
        self._samples = np.concatenate([self._samples, samples])
        probabilities: list[float] = []
        while len(self._samples) >= CONTEXT_SAMPLES + FRAME_SAMPLES:
            window = self._samples[: CONTEXT_SAMPLES + FRAME_SAMPLES]
            probability, self._h, self._c = self._model.step(window, self._h, self._c)
            probabilities.append(probability)
            self._samples = self._samples[FRAME_SAMPLES:]
        return probabilities


@cache
def vad_model() -> VadModel:
    """The weights that come with the silero-vad package, read once a process.

    The package is looked up, not imported: importing it would load torch. Raises ConfigError without it.
    """
    found = importlib.util.find_spec("silero_vad")
    places = found.submodule_search_locations if found else None
    file = Path(next(iter(places))) / WEIGHTS if places else None
    if file is None or not file.is_file():
        raise ConfigError("silero-vad is missing; turn detection needs its weights: pip install silero-vad")
    weights = torchscript_weights(file)
    own = "_model."
    return VadModel({key.removeprefix(own): value for key, value in weights.items() if key.startswith(own)})


def _taps(weight: Floats) -> Floats:
    """[out, in, 3] as the matrix [3 * in, out] that three frames side by side are multiplied with."""
    return np.ascontiguousarray(weight.transpose(2, 1, 0).reshape(-1, weight.shape[0]))


def _conv(x: Floats, taps: Floats, bias: Floats, stride: int) -> Floats:
    """Kernel 3, one zero at both ends, ReLU: x [frames, in] -> [frames / stride, out]."""
    padded = np.zeros((len(x) + 2, x.shape[1]), np.float32)
    padded[1:-1] = x
    at = range(0, len(x), stride)
    sides = np.stack([padded[i : i + 3].ravel() for i in at])
    return np.maximum(sides @ taps + bias, 0.0)


def _sigmoid(x: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-x))
