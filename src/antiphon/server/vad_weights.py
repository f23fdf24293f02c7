"""The weights of a TorchScript file as numpy arrays, without torch and without running anything."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def torchscript_weights(file: Path) -> dict[str, Floats]:
    """Every float32 tensor by its dotted name, as `state_dict()` would say. Raises pickle.UnpicklingError for
    a file that names anything but modules and float32 tensors."""
    with zipfile.ZipFile(file) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        root = _Reader(archive, inside.removesuffix(".pkl")).load()
    return dict(_named(root, ""))


class _Module:
    """Any module of the file, as the bag of attributes that it is."""


class _Reader(pickle.Unpickler):
    """Knows the few names that a scripted module is made of, and refuses every other."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(BytesIO(archive.read(f"{folder}.pkl")))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__."):
            return _Module
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "FloatStorage"): np.float32,
            ("torch.jit._pickle", "build_intlist"): list,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"a scripted module does not need {module}.{name}")
        return known[module, name]

    def persistent_load(self, pid: Any) -> Floats:
        _, dtype, key, _, _ = pid
        return np.frombuffer(self._archive.read(f"{self._folder}/{key}"), dtype)


def _tensor(storage: Floats, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Floats:
    """A tensor over its storage; strides count elements."""
    view = np.lib.stride_tricks.as_strided(storage[offset:], size, [4 * step for step in stride])
    return np.ascontiguousarray(view)


def _named(module: object, path: str) -> list[tuple[str, Floats]]:
    found: list[tuple[str, Floats]] = []
    for name, value in vars(module).items():
        if isinstance(value, np.ndarray):
            found.append((path + name, value))
        elif isinstance(value, _Module):
            found += _named(value, f"{path}{name}.")
    return found
