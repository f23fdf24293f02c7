"""How many prompt tokens a piece of audio or an image takes. Pure integer functions, free of torch."""

from __future__ import annotations

CHUNK_FRAMES = 100
"""Mel frames (10 ms each) of one encoder chunk; a full chunk gives 13 tokens."""

CHUNK_TOKENS = 13


def num_audio_tokens(num_frames: int) -> int:
    """Tokens for `num_frames` mel frames: 13 a full second, and three halvings (rounded up) of the rest."""
    chunks, rest = divmod(num_frames, CHUNK_FRAMES)
    for _ in range(3):
        rest = (rest + 1) // 2
    return chunks * CHUNK_TOKENS + rest


def num_image_tokens(grid: tuple[int, int, int], merge_size: int = 2) -> int:
    """Tokens for a (time, height, width) grid of patches: one per merged square of patches."""
    time, height, width = grid
    return time * height * width // merge_size**2
