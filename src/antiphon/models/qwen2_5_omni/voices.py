"""The voices of a checkpoint, from its spk_dict.pt: how each begins to speak, and what it sounds like."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from antiphon.core.errors import CheckpointError

VOICES_FILE = "spk_dict.pt"


@dataclass(frozen=True, slots=True)
class Voice:
    """start: a text token. condition fp32 [1, C] and mel fp32 [1, frames, bins] of somebody speaking so."""

    start: int
    condition: Tensor
    mel: Tensor


def load_voices(path: Path) -> dict[str, Voice]:
    """By name, in lower case. Nothing but tensors, numbers and names is read; raises CheckpointError."""
    file = path / VOICES_FILE
    try:
        found = torch.load(file, weights_only=True, map_location="cpu")
        return {
            name.lower(): Voice(int(voice["bos_token"]), voice["cond"].float(), voice["ref_mel"].float())
            for name, voice in found.items()
        }
    except FileNotFoundError:
        raise CheckpointError(f"{path} has no {VOICES_FILE}: without it the model has no voice") from None
    except (pickle.UnpicklingError, RuntimeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{file} does not hold voices ({error}). Fetch the file again") from error
