"""Random weights in the place of a checkpoint's own: to try a model's size and speed without its files.

Every tensor is made on the device in the dtype asked for, when it is read, from a seed of its own: the same
values whoever reads it, in whatever order. Knows names and shapes; scales are those at which activations of
any depth stay finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from antiphon.checkpoint.files import Checkpoint, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

NORM_SUFFIXES = (".weight", ".scale", ".gamma")
"""What multiplies, where it has one dimension."""

SPREAD = 0.02
"""Standard deviation of what is added (biases) and of what multiplies, around 1."""


@dataclass(frozen=True, kw_only=True)
class DummyCheckpoint(Checkpoint):
    """A model directory without weights, read as if it had them."""

    device: torch.device
    dtype: torch.dtype
    seed: int

    @classmethod
    def of(
        cls,
        directory: Checkpoint,
        shapes: Mapping[str, tuple[int, ...]],
        place: tuple[torch.device, torch.dtype],
        seed: int,
    ) -> DummyCheckpoint:
        """`shapes`: every tensor of the model by its name in a checkpoint."""
        device, dtype = place
        sizes = {name: TensorInfo("", shape, 0).num_elements for name, shape in shapes.items()}
        tensors = {
            name: TensorInfo("", shape, sizes[name] * dtype.itemsize) for name, shape in shapes.items()
        }
        return cls(
            directory.path,
            directory.config,
            directory.generation,
            tensors,
            directory.parts,
            device=device,
            dtype=dtype,
            seed=seed,
        )

    def read(
        self,
        names: Collection[str] | str = "",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor), one at a time. `names` and `progress` as in `Checkpoint.read`."""
        selected = self.select(names)
        total = sum(self.tensors[name].num_bytes for name in selected)
        done = 0
        for name in selected:
            yield name, self._make(name)
            done += self.tensors[name].num_bytes
            if progress is not None:
                progress(done, total)

    def _make(self, name: str) -> torch.Tensor:
        digest = blake2b(f"{self.seed} {name}".encode(), digest_size=7).digest()
        generator = torch.Generator(self.device).manual_seed(int.from_bytes(digest))
        tensor = torch.empty(self.tensors[name].shape, device=self.device, dtype=self.dtype)
        mean, deviation = moments(name, self.tensors[name].shape)
        return tensor.normal_(mean, deviation, generator=generator)


def moments(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's values: matrices and kernels keep the size of what they are
    given, norms and scales are about 1, and the rest (biases, logarithms of scales) about 0.
    """
    if len(shape) == 1:
        return (1.0 if name.endswith(NORM_SUFFIXES) else 0.0), SPREAD
    inputs = TensorInfo("", shape[1:], 0).num_elements
    return 0.0, inputs**-0.5
