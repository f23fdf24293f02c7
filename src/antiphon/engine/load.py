"""From a checkpoint to executors that are ready to run: device, dtype, memory check, weights, runners."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.checkpoint.files import Checkpoint, check_memory, open_checkpoint
from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.model_info import ModelInfo
from antiphon.core.ports import Executor, PayloadMover, Prompter
from antiphon.engine.ar import ArExecutor
from antiphon.engine.codec import CodecExecutor
from antiphon.engine.encoders import EncoderExecutor
from antiphon.engine.features import FeatureStore
from antiphon.engine.payloads import InlinePayloads
from antiphon.engine.talker import TalkerRunner
from antiphon.engine.thinker import ThinkerRunner
from antiphon.models.qwen3_omni import weights
from antiphon.models.qwen3_omni.config import Qwen3OmniConfig
from antiphon.models.qwen3_omni.geometry import read_geometry
from antiphon.models.qwen3_omni.prompt import load_prompter

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total); units are bytes where weights are read."""

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model: one executor per stage, and what a driver needs beside them."""

    executors: dict[str, Executor]
    payloads: PayloadMover
    prompter: Prompter
    node: NodeConfig
    info: ModelInfo

    @property
    def depth(self) -> int:
        """Steps that may be in flight when the next is planned."""
        return max(executor.depth for executor in self.executors.values())


def load_engine(source: str, options: EngineOptions, name: str, progress: Progress) -> Engine:
    """Load a checkpoint directory or hub id. Raises CheckpointError or ConfigError before serving begins."""
    device = pick_device(options.device)
    dtype = pick_dtype(options.dtype, device)
    if options.threads:
        torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(source, progress=lambda text: progress(text, 0, 0))
    check_memory(checkpoint, dtype, available_bytes(device))
    config = Qwen3OmniConfig.from_dict(checkpoint.config)
    node = read_geometry(config, checkpoint.generation, options)
    loader = _Loader(checkpoint, config, device, dtype, progress)
    executors, payloads = _build(loader, checkpoint, config, node)
    speakers = config.speech.speakers if config.speech is not None else {}
    return Engine(
        executors,
        payloads,
        load_prompter(checkpoint.path, checkpoint.config, options.max_context_tokens - 1),
        node,
        ModelInfo(
            name=name,
            path=str(checkpoint.path),
            family=node.graph,
            voices=tuple(speakers),
            max_context_tokens=options.max_context_tokens,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
        ),
    )


def _build(
    loader: _Loader, checkpoint: Checkpoint, config: Qwen3OmniConfig, node: NodeConfig
) -> tuple[dict[str, Executor], PayloadMover]:
    """Executors in pipeline order, and what moves payloads between them."""
    features = FeatureStore()
    encoders = EncoderExecutor(loader.module("encoders"), checkpoint.path, features)
    thinker = ThinkerRunner(loader.module("thinker"), node.ar["thinker"], features)
    executors: dict[str, Executor] = {"encoders": encoders, "thinker": ArExecutor(thinker)}
    talkers: dict[str, TalkerRunner] = {}
    if config.speech is not None:
        voice = next(iter(config.speech.speakers))
        talker = TalkerRunner(loader.module("talker"), node.ar["talker"], config.tokens.tts_pad, voice)
        talkers["talker"] = talker
        executors["talker"] = ArExecutor(talker)
        executors["code2wav"] = CodecExecutor(loader.module("code2wav"))
    return executors, InlinePayloads({"thinker": thinker}, talkers, features)


class _Loader:
    """Streams each stage's tensors from disk to the device and says how far it is."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Qwen3OmniConfig,
        device: torch.device,
        dtype: torch.dtype,
        progress: Progress,
    ) -> None:
        self._checkpoint = checkpoint
        self._config = config
        self._device = device
        self._dtype = dtype
        self._progress = progress

    def module(self, stage: str) -> Any:
        """One stage's module. The vocoder runs in fp32 at least: bf16 is audibly wrong (rel. rms 8e-2)."""
        part = "vocoder" if stage == "code2wav" else stage
        dtype = self._dtype
        if part == "vocoder" and dtype.itemsize < 4:
            dtype = torch.float32
        names = weights.names_for(part, self._config)
        tensors = self._checkpoint.read(
            names, progress=lambda done, total: self._progress(f"loading {stage}", done, total)
        )
        return weights.load(part, tensors, self._config, self._device, dtype)


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one. Raises ConfigError for a device that isn't there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r} is no device; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name} was asked for, but this machine (or this torch build) has no CUDA"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name} was asked for; this machine has {torch.cuda.device_count()}")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on a CPU, where bfloat16 products are slower."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise ConfigError(f"--dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def available_bytes(device: torch.device) -> int:
    """Memory that is free now on the device; on a CPU, what the page cache holds counts as free."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
