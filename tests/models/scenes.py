"""Prompts of text, audio and images, made without a processor: ids, mels and patches as transformers wants
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from antiphon.models.qwen_media.positions import MediumSpan
from antiphon.models.qwen_media.preprocess_shapes import num_audio_tokens, num_image_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.models.qwen3_omni.config import Qwen3OmniConfig

Grid = tuple[int, int, int]
PATCH_SIZE = 3 * 2 * 16 * 16


@dataclass
class Scene:
    """A conversation under construction. Media are appended inside a turn of the user."""

    config: Qwen3OmniConfig
    newline: int = 7
    ids: list[int] = field(default_factory=list)
    mels: list[torch.Tensor] = field(default_factory=list)
    patches: list[torch.Tensor] = field(default_factory=list)
    spans: list[MediumSpan] = field(default_factory=list)
    sounds: list[MediumSpan] = field(default_factory=list)

    def open(self, role: str) -> Scene:
        tokens = self.config.tokens
        return self.text([tokens.im_start, getattr(tokens, role), self.newline])

    def close(self) -> Scene:
        return self.text([self.config.tokens.im_end, self.newline])

    def text(self, ids: Sequence[int]) -> Scene:
        self.ids += ids
        return self

    def audio(self, frames: int) -> Scene:
        tokens = self.config.tokens
        self.mels.append(noise((128, frames), seed=frames))
        self.sounds.append(MediumSpan(len(self.ids) + 1, (0, 0, 0), audio_tokens=num_audio_tokens(frames)))
        return self.text([tokens.audio_start, *[tokens.audio] * num_audio_tokens(frames), tokens.audio_end])

    def image(self, grid: Grid) -> Scene:
        tokens = self.config.tokens
        self.spans.append(MediumSpan(len(self.ids) + 1, grid))
        self.patches.append(noise((grid[0] * grid[1] * grid[2], PATCH_SIZE), seed=grid[1]))
        return self.text([tokens.vision_start, *[tokens.image] * num_image_tokens(grid), tokens.vision_end])

    def video(self, film: tuple[Grid, float]) -> Scene:
        """A silent one: grid and seconds per frame of the grid."""
        grid, seconds = film
        return self._film(MediumSpan(len(self.ids) + 1, grid, seconds), [])

    def film(self, film: tuple[Grid, float, int]) -> Scene:
        """One with sound of so many mel frames."""
        grid, seconds, frames = film
        self.mels.append(noise((128, frames), seed=frames))
        tokens, sound = self.config.tokens, num_audio_tokens(frames)
        span = MediumSpan(len(self.ids) + 2, grid, seconds, audio_tokens=sound)
        return self._film(span, [tokens.audio_start, tokens.audio_end])

    def _film(self, span: MediumSpan, marks: list[int]) -> Scene:
        tokens = self.config.tokens
        self.spans.append(span)
        seen = span.order(self.config.positions_per_second) < span.visual_tokens
        pads = [tokens.video if is_seen else tokens.audio for is_seen in seen]
        return self.text([tokens.vision_start, *marks[:1], *pads, *marks[1:], tokens.vision_end])

    def kwargs(self) -> dict[str, Any]:
        """The arguments of transformers' generate()."""
        ids = torch.tensor([self.ids])
        out: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.mels:
            longest = max(mel.shape[1] for mel in self.mels)
            frames = torch.arange(longest)
            pad = torch.nn.functional.pad
            out["input_features"] = torch.stack([pad(m, (0, longest - m.shape[1])) for m in self.mels])
            out["feature_attention_mask"] = torch.stack([(frames < m.shape[1]).long() for m in self.mels])
        if self.patches:
            out["pixel_values"] = torch.cat(self.patches)
            out["image_grid_thw"] = torch.tensor(
                [span.grid for span in self.spans if self.ids[span.start] == self.config.tokens.image]
            )
        return out


def noise(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scenes(config: Qwen3OmniConfig) -> dict[str, Scene]:
    """One of each kind; every one ends with the header of the reply."""
    plain = Scene(config).open("system").text([20, 21, 22]).close().open("user").text(range(30, 41)).close()
    audio = Scene(config).open("user").audio(330).text([40, 41]).close()
    image = Scene(config).open("user").text([50]).image((1, 4, 6)).text([51, 52]).close()
    mixed = (
        Scene(config)
        .open("system")
        .text([20, 21])
        .close()
        .open("user")
        .image((1, 4, 4))
        .text([61])
        .audio(150)
        .image((1, 2, 6))
        .close()
        .open("assistant")
        .text([70, 71, 72])
        .close()
        .open("user")
        .audio(207)
        .text([80])
        .close()
    )
    made = {"text": plain, "audio": audio, "image": image, "mixed": mixed}
    return {name: scene.open("assistant") for name, scene in made.items()}
