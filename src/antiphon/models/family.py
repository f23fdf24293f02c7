"""The default family: what most families answer alike when the engine asks (`engine.family.Family`).

A family's module has one instance of a subclass as `FAMILY`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.core.errors import ConfigError
from antiphon.core.ports import Prompter
from antiphon.latency.shapes import ModelShape
from antiphon.models.layout import Layout
from antiphon.models.vocabulary import call_ids
from antiphon.nn.shard import Shard
from antiphon.nn.stage_source import Pairs, Place, StageSource


class Family(ABC):
    """Config is the family's own type.

    name     for people
    layouts  per stage, what writes its parameters and their sources into a layout
    demo     what a demo checkpoint's config.json has beside the usual; empty: it has a writer of its own
    """

    name: ClassVar[str]
    layouts: ClassVar[Mapping[str, Callable[[Layout, Any], None]]] = {}
    demo: ClassVar[Mapping[str, Any]] = {}

    @abstractmethod
    def read_config(self, values: Mapping[str, Any]) -> Any:
        """From config.json; raises CheckpointError."""

    @abstractmethod
    def read_geometry(self, config: Any, generation: Mapping[str, Any], options: EngineOptions) -> NodeConfig:
        """The node's configuration for this checkpoint under these options."""

    @abstractmethod
    def read_shape(self, config: Any, name: str) -> ModelShape:
        """Of every stage that the checkpoint has."""

    @abstractmethod
    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
        """From a checkpoint's directory and its parsed config.json; raises CheckpointError."""

    @abstractmethod
    def build(self, stage: str, config: Any, params: dict[str, Tensor]) -> Any:
        """The stage's module, whatever is imported for it."""

    def adapt(self, stage: str, module: Any, config: Any, checkpoint: Path) -> Any:
        """The module as the engine's step runner sees it."""
        return module

    def dtype_of(self, stage: str, dtype: torch.dtype) -> torch.dtype:
        """The type in which a stage computes where the engine was asked for `dtype`."""
        return dtype

    def call_ids(self, path: Path) -> tuple[int, ...]:
        """Text tokens that begin a tool call, of a checkpoint's directory."""
        return call_ids(path)

    def voices(self, config: Any, path: Path) -> tuple[str, ...]:
        """Names, lower case; none for a checkpoint without speech."""
        return ()

    def max_recording_s(self, config: Any) -> float:
        """The longest recording that it hears, in seconds."""
        return inf

    def languages(self, config: Any) -> tuple[str, ...]:
        """Codes of those that a transcriber hears, its own first; none for a model that has none."""
        return ()

    def latin_only(self, config: Any) -> bool:
        """Its voice says no letters of another script."""
        return False

    def layout(self, stage: str, config: Any) -> Layout:
        """Parameters and sources of a stage. Raises ValueError for one that the family doesn't have, and
        CheckpointError for one that the checkpoint doesn't have."""
        if stage not in self.layouts:
            raise ValueError(f"stage {stage!r} is not one of {', '.join(self.layouts)}")
        layout = Layout()
        self.layouts[stage](layout, config)
        return layout

    def tensor_names(self, stage: str, config: Any) -> list[str]:
        """Checkpoint tensors that a stage needs, sorted."""
        return sorted(self.layout(stage, config).sources)

    def tensor_shapes(self, stage: str, config: Any) -> dict[str, tuple[int, ...]]:
        """The tensors of `tensor_names` with their shapes in a checkpoint."""
        return {name: source.shape for name, source in self.layout(stage, config).sources.items()}

    def load(
        self,
        stage: str,
        tensors: Mapping[str, Tensor] | Pairs,
        config: Any,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Any:
        """A stage's module, its parameters filled by `tensors` in any order and of any float type. Raises one
        CheckpointError that names every tensor missing or of a wrong shape."""
        with torch.no_grad():
            return self.build(stage, config, self.layout(stage, config).fill(tensors, device, dtype))

    def load_stage(
        self, source: StageSource, place: Place, checkpoint: Path, shard: Shard | None = None
    ) -> Any:
        """A stage's model on a device."""
        (device, dtype), stage, config = place, source.stage, source.config
        module = self.load(stage, source.tensors, config, device, self.dtype_of(stage, dtype))
        return self.adapt(stage, module, config, checkpoint)

    def check_ranks(self, stage: str, config: Any, ranks: int) -> None:
        """Raises ConfigError."""
        raise ConfigError(f"tensor_parallel {ranks}: {self.name} runs in one process; leave it at 1")

    def load_follower(
        self,
        stage: str,
        read: Callable[[list[str]], Pairs],
        config: Any,
        place: Place,
        shard: Shard,
    ) -> Any:
        """Raises ConfigError, as `check_ranks` does before any rank is started."""
        self.check_ranks(stage, config, shard.ranks)
