"""Makes a random talker speak while there is text and stop soon after it ends.

Two features of the talker's hidden state are kept free of every layer: one is constant, one is set only
while the text track carries <tts_pad>, that is after the text has ended. The row of the codec head for the
end token reads those two and nothing else. Works in place on transformers modules, after all other weights
are set.
"""

from __future__ import annotations

import math
from typing import Any

import torch

CONSTANT, ENDED = 0, 1
"""Features of the talker's hidden state."""
CONSTANT_SIZE = 1.0
ENDED_SIZE = 2.0
MARKER_SIZE = 4.0
LOGIT_WHILE_TEXT = -20.0
"""Logit of the end token while text is fed."""
END_PROBABILITY = 0.25
"""Chance of the end token in each frame after the text, with the sampling defaults below."""
NUM_SUPPRESSED = 1024
"""The last ids of the talker's vocabulary, never emitted except the end token."""
TEMPERATURE, TOP_K = 0.9, 50
NUM_CALIBRATION_FRAMES = 48


@torch.no_grad()
def wire_codec_end(model: Any, marker_feature: int, generator: torch.Generator) -> None:
    """Tie the codec end token to <tts_pad>.

    `marker_feature` is the thinker embedding feature that is zero for every token but <tts_pad>.
    """
    talker = model.talker
    _free_features(talker)
    embeddings = model.thinker.model.language_model.embed_tokens.weight
    embeddings[:, marker_feature] = 0.0
    embeddings[model.config.tts_pad_token_id, marker_feature] = MARKER_SIZE
    talker.model.norm.weight[[CONSTANT, ENDED]] = 1.0
    _carry_marker(talker.text_projection, marker_feature)
    for projection in (talker.text_projection, talker.hidden_projection):
        projection.linear_fc2.bias[CONSTANT] = CONSTANT_SIZE
    _read_marker(talker, _states_after_text(model, generator))


def _free_features(talker: Any) -> None:
    """Nothing but the text track writes to the two features."""
    free = [CONSTANT, ENDED]
    for layer in talker.model.layers:
        layer.self_attn.o_proj.weight[free] = 0.0
        layer.mlp.experts.down_proj[:, free] = 0.0
        layer.mlp.shared_expert.down_proj.weight[free] = 0.0
    for table in (talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding):
        table.weight[:, free] = 0.0
    for projection in (talker.text_projection, talker.hidden_projection):
        projection.linear_fc2.weight[free] = 0.0
        projection.linear_fc2.bias[free] = 0.0


def _carry_marker(projection: Any, marker_feature: int) -> None:
    """Give the marker a hidden unit of its own: silu(0) = 0 keeps it silent for all other tokens."""
    first, second = projection.linear_fc1, projection.linear_fc2
    first.weight[:, marker_feature] = 0.0
    first.weight[0] = 0.0
    first.bias[0] = 0.0
    first.weight[0, marker_feature] = 1.0
    second.weight[:, 0] = 0.0
    unit = torch.nn.functional.silu(torch.tensor(MARKER_SIZE)).item()
    second.weight[ENDED, 0] = ENDED_SIZE / unit


def _states_after_text(model: Any, generator: torch.Generator) -> torch.Tensor:
    """Talker states, (frames, width) float32 after the final norm, for random codes under <tts_pad>."""
    talker, config = model.talker, model.config
    num_codes = config.code2wav_config.codebook_size
    codes = torch.randint(
        0, num_codes, (config.talker_config.num_code_groups, NUM_CALIBRATION_FRAMES), generator=generator
    )
    tables = (talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding)
    spoken = sum(table(group) for table, group in zip(tables, codes, strict=True))
    pad = model.thinker.model.language_model.embed_tokens.weight[config.tts_pad_token_id]
    embeds = (spoken + talker.text_projection(pad))[None]
    return talker.model(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]


def _read_marker(talker: Any, states: torch.Tensor) -> None:
    """The two features have the same size at every position, so the norm scales both alike."""
    head = talker.codec_head.weight
    head[:, [CONSTANT, ENDED]] = 0.0
    logits = (states @ head[:-NUM_SUPPRESSED].T).topk(TOP_K).values / TEMPERATURE
    odds = math.log(END_PROBABILITY / (1 - END_PROBABILITY))
    wanted = TEMPERATURE * (logits.logsumexp(-1).mean().item() + odds)
    end = head[talker.config.codec_eos_token_id]
    end.zero_()
    end[CONSTANT] = LOGIT_WHILE_TEXT / states[:, CONSTANT].mean()
    end[ENDED] = (wanted - LOGIT_WHILE_TEXT) / states[:, ENDED].mean()
