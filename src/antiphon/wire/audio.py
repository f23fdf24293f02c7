"""Audio framing: the engine's float samples as wire PCM16, in deltas small enough for every client."""

from __future__ import annotations

import base64

import numpy as np

from antiphon.core.units import PCM16_BYTES, WIRE_SAMPLE_RATE_HZ

MAX_DELTA_S = 8
"""384 kB of PCM, 512 kB in base64: well under the 1 MiB frames that some clients stop at."""
_MAX_DELTA_BYTES = MAX_DELTA_S * WIRE_SAMPLE_RATE_HZ * PCM16_BYTES


def pcm16(samples: bytes) -> bytes:
    """Float32 samples in [-1, 1] as PCM16; values outside are clipped, not-a-number is silence."""
    values = np.nan_to_num(np.frombuffer(samples, "<f4"), posinf=1.0, neginf=-1.0)
    return np.rint(np.clip(values, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()


def audio_deltas(samples: bytes) -> list[str]:
    """Base64 PCM16 pieces, in order."""
    pcm = pcm16(samples)
    starts = range(0, len(pcm), _MAX_DELTA_BYTES)
    return [base64.b64encode(pcm[start : start + _MAX_DELTA_BYTES]).decode() for start in starts]
