"""The family of decoders that write text, for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from antiphon.core.config import EngineOptions, NodeConfig
from antiphon.latency.shapes import ModelShape
from antiphon.models.decoder_stage import Thinker, plain_positions
from antiphon.models.family import Family
from antiphon.models.geometry import Json, decoder_shape, text_stage
from antiphon.models.prompt import NoMedia, Prompter
from antiphon.models.text.model import TextConfig, text_layout
from antiphon.models.vocabulary import Vocabulary, load_template, load_tokenizer

LAYOUTS = {"thinker": text_layout}


class TextFamily(Family):
    """One stage, which keeps nothing for a stage that speaks."""

    name = "a checkpoint that is text only"
    layouts = LAYOUTS

    def read_config(self, values: Mapping[str, Any]) -> TextConfig:
        return TextConfig.from_dict(values)

    def read_geometry(self, config: TextConfig, generation: Json, options: EngineOptions) -> NodeConfig:
        thinker = text_stage(generation, options, config.decoder.num_layers, config.stop_ids)
        return NodeConfig("text", {"thinker": thinker}, {}, {}, {}, options.preset)

    def read_shape(self, config: TextConfig, name: str) -> ModelShape:
        return ModelShape(name, {"thinker": decoder_shape(config.decoder, config.vocab)})

    def load_prompter(self, path: Path, config: Mapping[str, Any], max_prompt_tokens: int) -> Prompter:
        tokenizer = load_tokenizer(path)
        vocabulary = Vocabulary(tokenizer.backend_tokenizer, self.read_config(config).vocab)
        return Prompter(vocabulary, load_template(path, tokenizer), NoMedia(), max_prompt_tokens)

    def build(self, stage: str, config: TextConfig, params: dict[str, Tensor]) -> Thinker:
        return Thinker(config.decoder, params, plain_positions)


FAMILY = TextFamily()
