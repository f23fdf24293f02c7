"""Files of weights: what they are called, and how they are written."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from antiphon.core.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


def save(tensors: Tensors, directory: Path, file_name: str = SINGLE_FILE) -> None:
    """Write safetensors that everybody may read, as the files beside it. Raises CheckpointError."""
    try:
        save_file(tensors, directory / file_name, metadata={"format": "pt"})
    except SafetensorError as error:  # so does safetensors tell of a full disk
        raise CheckpointError(f"{directory / file_name} cannot be written: {error}") from error
    (directory / file_name).chmod(0o644)
