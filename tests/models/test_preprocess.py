"""Media preprocessing equals the reference processors, from the same numbers."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2VLImageProcessorPil, WhisperFeatureExtractor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from antiphon.core.errors import CheckpointError
from antiphon.models.qwen_media.preprocess import (
    AudioPreprocessor,
    ImagePreprocessor,
    VideoPreprocessor,
)
from antiphon.models.qwen_media.preprocess_shapes import (
    AudioShape,
    ImageShape,
    VideoShape,
    audio_shape,
    image_shape,
    video_shape,
)

AUDIO_FIELDS = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 300,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "left",
    "padding_value": 0.0,
    "dither": 0.0,
    "return_attention_mask": True,
}
IMAGE_FIELDS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
PIXELS = {"min_pixels": 4096, "max_pixels": 65536}
SHAPE = ImageShape(16, 2, 2, 4096, 65536)
VIDEO_SHAPE = VideoShape(ImageShape(16, 2, 2, 128 * 32 * 32, 768 * 32 * 32))
LENGTHS = [201, 319, 320, 399, 400, 401, 1601, 15999, 16000, 16001, 16161, 480000, 480001, 560037]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one merged file that released checkpoints have."""
    return write(tmp_path_factory.mktemp("released"), AUDIO_FIELDS | IMAGE_FIELDS | PIXELS)


def write(folder: Path, fields: dict[str, Any], name: str = "preprocessor_config.json") -> Path:
    (folder / name).write_text(json.dumps(fields))
    return folder


def noise(num_samples: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(num_samples)
    return (rng.standard_normal(num_samples) * 0.1).astype(np.float32)


def picture(width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)


def reference_mel(path: Path, samples: np.ndarray[Any, np.dtype[np.float32]]) -> torch.Tensor:
    extractor = WhisperFeatureExtractor.from_pretrained(path)
    out = extractor(
        [samples],
        sampling_rate=16000,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    return out["input_features"].permute(0, 2, 1)[out["attention_mask"].bool()].permute(1, 0)


@pytest.mark.parametrize("num_samples", LENGTHS)
def test_mel_equals_the_masked_features_of_the_reference(released: Path, num_samples: int) -> None:
    samples = noise(num_samples)
    mel = AudioPreprocessor(released).mel(samples)
    assert mel.shape == (128, num_samples // 160)
    assert mel.dtype == torch.float32
    assert torch.equal(mel, reference_mel(released, samples))


def test_mel_of_the_demo_checkpoint(tiny_checkpoint: Path) -> None:
    samples = noise(20000)
    mel = AudioPreprocessor(tiny_checkpoint).mel(samples)
    assert torch.equal(mel, reference_mel(tiny_checkpoint, samples))


def test_mel_takes_read_only_bytes_and_silence(released: Path) -> None:
    samples = np.frombuffer(bytes(4 * 3200), np.float32)
    assert torch.isfinite(AudioPreprocessor(released).mel(samples)).all()


@pytest.mark.parametrize("num_samples", [0, 1, 159, 160, 200])
def test_a_clip_too_short_for_the_transform_is_refused(released: Path, num_samples: int) -> None:
    with pytest.raises(ValueError, match=f"at least 201 samples, got {num_samples}"):
        AudioPreprocessor(released).mel(noise(num_samples))


def test_samples_that_are_not_finite_are_refused(released: Path) -> None:
    samples = noise(1600)
    samples[7] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        AudioPreprocessor(released).mel(samples)


def test_threads_share_a_preprocessor(released: Path) -> None:
    audio, image = AudioPreprocessor(released), ImagePreprocessor(released)
    clips, pictures = [noise(1600 + 77 * i) for i in range(24)], [picture(60 + i, 90) for i in range(24)]
    with ThreadPoolExecutor(4) as pool:
        mels, patches = list(pool.map(audio.mel, clips)), list(pool.map(image.patches, pictures))
    assert all(torch.equal(mel, audio.mel(clip)) for mel, clip in zip(mels, clips, strict=True))
    assert all(torch.equal(got[0], image.patches(p)[0]) for got, p in zip(patches, pictures, strict=True))


def test_audio_tokens_equal_the_reference() -> None:
    shape = AudioShape(160, 400)
    frames = np.arange(2, 1300)
    expected = _get_feat_extract_output_lengths(frames)
    assert [shape.tokens(int(n) * 160 + 159) for n in frames] == expected.tolist()


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_grid_equals_smart_resize(width: int, height: int) -> None:
    try:
        rows, columns = smart_resize(height, width, 32, 4096, 65536)
    except ValueError:
        with pytest.raises(ValueError, match="200 times"):
            SHAPE.grid_of(width, height)
    else:
        assert SHAPE.grid_of(width, height) == (1, rows // 16, columns // 16)


SIZES = [(150, 100), (1, 1), (3, 3), (2, 3), (900, 5), (5, 900), (200, 1), (640, 480), (64, 64), (48, 80)]


@pytest.mark.parametrize("size", SIZES)
def test_patches_equal_the_reference(released: Path, size: tuple[int, int]) -> None:
    rgb, ours = picture(*size), ImagePreprocessor(released)
    reference = Qwen2VLImageProcessorPil(**IMAGE_FIELDS, **PIXELS)
    expected = reference(images=[rgb], input_data_format="channels_last", return_tensors="pt")
    patches, grid = ours.patches(rgb)
    assert torch.equal(patches, expected["pixel_values"])
    assert patches.dtype == torch.float32
    assert patches.shape == (grid[1] * grid[2], 3 * 2 * 16 * 16)
    assert [list(grid)] == expected["image_grid_thw"].tolist()
    assert grid == ours.grid_of(*size)
    assert ours.shape.tokens(grid) * 4 == len(patches)
    assert torch.equal(ours.patches_of(rgb.tobytes(), *size)[0], patches)


def test_pictures_that_cannot_be_used_are_refused(released: Path) -> None:
    ours = ImagePreprocessor(released)
    with pytest.raises(ValueError, match="at most 200 times as long as wide, got 201x1"):
        ours.patches(picture(201, 1))
    with pytest.raises(ValueError, match="width and a height, got 0x4"):
        ours.grid_of(0, 4)
    with pytest.raises(ValueError, match=r"\[height, width, 3\]"):
        ours.patches(np.zeros((8, 8, 4), np.uint8))
    with pytest.raises(ValueError, match="has 12 bytes, got 11"):
        ours.patches_of(bytes(11), 2, 2)


def test_both_spellings_and_places_of_the_fields(released: Path, tmp_path: Path) -> None:
    size = {"size": {"shortest_edge": 4096, "longest_edge": 65536}}
    for name in ("sized", "nested", "both"):
        (tmp_path / name).mkdir()
    sized = write(tmp_path / "sized", AUDIO_FIELDS | IMAGE_FIELDS | size)
    nested = {"feature_extractor": AUDIO_FIELDS, "image_processor": IMAGE_FIELDS | size}
    write(tmp_path / "nested", nested, "processor_config.json")
    other = {"size": {"shortest_edge": 1, "longest_edge": 2}}
    both = write(tmp_path / "both", AUDIO_FIELDS | IMAGE_FIELDS | PIXELS | other)
    for folder in (released, sized, tmp_path / "nested", both):
        assert image_shape(folder) == SHAPE
        assert audio_shape(folder) == AudioShape(160, 400)


def test_a_flat_file_for_audio_and_a_nested_one_for_images(tmp_path: Path) -> None:
    write(tmp_path, AUDIO_FIELDS)
    write(tmp_path, {"image_processor": IMAGE_FIELDS | PIXELS}, "processor_config.json")
    assert image_shape(tmp_path) == SHAPE


def test_missing_fields_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        audio_shape(tmp_path)
    write(tmp_path, AUDIO_FIELDS | IMAGE_FIELDS)
    with pytest.raises(CheckpointError, match="max_pixels"):
        image_shape(tmp_path)
    write(tmp_path, {"patch_size": 16} | PIXELS)
    with pytest.raises(CheckpointError, match="temporal_patch_size, merge_size"):
        image_shape(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        image_shape(tmp_path)


def reference_function(file: str, name: str) -> Callable[..., Any]:
    """A function or method of transformers as it is written there, without importing its module: the video
    processor's needs torchvision.
    """
    tree = ast.parse((Path(transformers.__file__).parent / file).read_text())
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)
    found.decorator_list, found.returns = [], None
    for argument in found.args.args:
        argument.annotation = None
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(ast.Module([found], []), file, "exec"), namespace)
    return namespace[name]


def movie(frames: int, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    rng = np.random.default_rng(frames + height)
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def reference_patches(pixels: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """uint8 [t, 3, h, w] of the final size, through the reference's arithmetic."""
    fuse = reference_function("image_processing_backends.py", "_fuse_mean_std_and_rescale_factor")
    mean, std, _ = fuse(None, True, [0.5] * 3, [0.5] * 3, True, 1 / 255)
    normal = (pixels.float() - mean[:, None, None]) / std[:, None, None]
    patchify = reference_function("models/qwen2_vl/video_processing_qwen2_vl.py", "patchify")
    patches, *grid = patchify(None, normal[None], 16, 2, 2)
    return patches[0], tuple(grid)


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_video_patches_equal_the_reference(released: Path, frames: int) -> None:
    """Frames that need no resizing; a last frame without a partner is shown twice."""
    video, ours = movie(frames, 256, 544), VideoPreprocessor(released)
    expected, expected_grid = reference_patches(torch.from_numpy(video).permute(0, 3, 1, 2))
    patches, grid = ours.patches(video)
    assert torch.equal(patches, expected)
    assert grid == expected_grid == ours.shape.grid_of(frames, 544, 256)
    assert ours.shape.tokens(grid) * 4 == len(patches)
    assert torch.equal(ours.patches_of(video.tobytes(), 544, 256, frames)[0], patches)


@pytest.mark.parametrize("size", [(64, 96), (250, 600), (1500, 900)])
def test_resized_frames_are_pillows_but_for_rounding(released: Path, size: tuple[int, int]) -> None:
    """The reference resizes bytes with torch's kernel, as we do; Pillow's bicubic filter is the same one."""
    video = movie(2, *size)
    patches, (_, rows, columns) = VideoPreprocessor(released).patches(video)
    resized = [
        np.array(Image.fromarray(frame).resize((columns * 16, rows * 16), Image.Resampling.BICUBIC))
        for frame in video
    ]
    expected, _ = reference_patches(torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2))
    levels = ((patches - expected) * 127.5).abs()
    assert levels.max() < 2.01
    assert levels.mean() < 0.1
    assert 128 * 32 * 32 <= rows * columns * 256 <= 768 * 32 * 32


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 9))
def test_video_grid_equals_smart_resize(height: int, width: int, frames: int) -> None:
    shape = VIDEO_SHAPE
    try:
        rows, columns = smart_resize(height, width, 32, 128 * 32 * 32, 768 * 32 * 32)
    except ValueError:
        with pytest.raises(ValueError, match="200 times"):
            shape.grid_of(frames, width, height)
    else:
        assert shape.grid_of(frames, width, height) == ((frames + 1) // 2, rows // 16, columns // 16)


def test_videos_have_their_fields_from_the_nearest_place(released: Path, tmp_path: Path) -> None:
    """Their own section, their own file, or the image processor's; limits of pixels are never read."""
    write(tmp_path, AUDIO_FIELDS | IMAGE_FIELDS | PIXELS)
    assert video_shape(released) == video_shape(tmp_path) == VIDEO_SHAPE
    write(tmp_path, IMAGE_FIELDS | {"patch_size": 14} | PIXELS, "video_preprocessor_config.json")
    assert video_shape(tmp_path).frame.patch == 14
    write(tmp_path, {"video_processor": IMAGE_FIELDS | {"patch_size": 8}}, "processor_config.json")
    assert video_shape(tmp_path).frame.patch == 8
    write(tmp_path, {"video_processor": IMAGE_FIELDS | {"resample": 2}}, "processor_config.json")
    with pytest.raises(CheckpointError, match="bicubic"):
        VideoPreprocessor(tmp_path)


@pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf"), 1e-9])
def test_a_rate_that_means_nothing_is_refused(fps: float) -> None:
    with pytest.raises(ValueError, match="fps must lie between"):
        VIDEO_SHAPE.seconds_per_grid(fps)


def test_a_video_without_frames_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        VIDEO_SHAPE.grid_of(0, 64, 64)
    assert VIDEO_SHAPE.seconds_per_grid(4) == 0.5
