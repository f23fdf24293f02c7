"""A tiny cascade with random weights: three checkpoints of transformers, and the file that names them.

Its transcriber hears 4 s at a time and writes words of the demo corpus, its voice has characters for symbols
and no noise. Neither knows the other's tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from antiphon.checkpoint.demo_tokenizer import special_ids, train_tokenizer, write_tokenizer
from antiphon.checkpoint.demo_weights import generator_for
from antiphon.checkpoint.side_files import write_json

if TYPE_CHECKING:
    from pathlib import Path

WINDOW_S = 4
VOICE_RATE_HZ = 24000
CHARACTERS = "_ abcdefghijklmnopqrstuvwxyz'.,?!-"
"""Of the voice; the first stands between all others."""
FRAMES_PER_SYMBOL = 2.0


def write_cascade(directory: Path, seed: int) -> None:
    """The transcriber, the voice and config.json; the thinker is written by its own family's writer."""
    content = {
        "model_type": "cascade",
        "architectures": ["Cascade"],
        "transcriber": "transcriber",
        "thinker": "thinker",
        "voice": "voice",
    }
    write_json(directory / "config.json", content)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _write_transcriber(directory / "transcriber", seed)
        _write_voice(directory / "voice", seed)


def _write_transcriber(directory: Path, seed: int) -> None:
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor
    from transformers import WhisperForConditionalGeneration as Whisper

    tokenizer = train_tokenizer()
    ids, vocab = special_ids(tokenizer), tokenizer.get_vocab_size()
    special: dict[str, Any] = {
        "decoder_start_token_id": ids["<|im_start|>"],
        "bos_token_id": ids["<|im_start|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    config = WhisperConfig(
        vocab_size=vocab,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=50 * WINDOW_S,
        max_target_positions=24,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **special,
    )
    model = Whisper(config).eval()
    _spread(model, seed)
    others = [token for token in ids.values() if token != ids["<|im_end|>"]]
    model.generation_config = GenerationConfig(
        no_timestamps_token_id=ids["<|audio_start|>"],
        prev_sot_token_id=ids["<|audio_end|>"],
        is_multilingual=False,
        suppress_tokens=sorted(others),
        begin_suppress_tokens=[ids["<|im_end|>"]],
        max_length=config.max_target_positions,
        **special,
    )
    directory.mkdir()
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=16, chunk_length=WINDOW_S).save_pretrained(directory)
    write_tokenizer(tokenizer, directory)


def _write_voice(directory: Path, seed: int) -> None:
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    config = VitsConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=9,
        upsample_initial_channel=16,
        upsample_rates=[8, 8],
        upsample_kernel_sizes=[16, 16],
        resblock_kernel_sizes=[3, 5],
        resblock_dilation_sizes=[[1, 3], [1, 3]],
        depth_separable_num_layers=2,
        duration_predictor_num_flows=3,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=2,
        posterior_encoder_num_wavenet_layers=1,
        noise_scale=0.0,
        noise_scale_duration=0.0,
        sampling_rate=VOICE_RATE_HZ,
    )
    model: Any = VitsModel(config).eval()
    _spread(model, seed)
    with torch.no_grad():
        model.duration_predictor.flows[0].translate[0] = -torch.log(torch.tensor(FRAMES_PER_SYMBOL))
    directory.mkdir()
    model.save_pretrained(directory)
    vocabulary = directory / "characters.json"
    write_json(vocabulary, {character: i for i, character in enumerate(CHARACTERS)})
    VitsTokenizer(
        vocab_file=str(vocabulary), pad_token="_", unk_token="_", phonemize=False, normalize=True
    ).save_pretrained(directory)
    vocabulary.unlink()


@torch.no_grad()
def _spread(model: torch.nn.Module, seed: int) -> None:
    """Weights wide enough that each input matters, each from a seed of its own."""
    for name, parameter in model.named_parameters():
        generator = generator_for(name, seed)
        if "norm" in name and name.endswith("weight"):
            parameter.normal_(1.0, 0.1, generator=generator)
        elif parameter.dim() == 1:
            parameter.normal_(0.0, 0.1, generator=generator)
        elif parameter.dim() == 3 and "original0" not in name:
            fan_in = parameter[0].numel()
            parameter.normal_(0.0, fan_in**-0.5, generator=generator)
        elif "embed_positions" in name:
            parameter.normal_(0.0, 0.5, generator=generator)
        elif parameter.dim() == 2 and min(parameter.shape) > 1:
            parameter.normal_(0.0, 2.0 * parameter.shape[1] ** -0.5, generator=generator)
