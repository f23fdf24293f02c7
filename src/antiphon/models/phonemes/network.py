"""How an unknown word may be pronounced: a BART of one layer and one head on characters, in numpy.

Post-norm blocks, learnt positions, greedy decoding. Words are short, so there is no KV cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from antiphon.core.latin import to_ascii
from antiphon.models.phonemes.tokens import PUNCTUATION

NUM_SPECIAL = 4
MOST_LETTERS = 24
"""That are read at once; what follows is read anew."""
_PIECE = re.compile(r"[^\W\d_]+(?:['’\-.][^\W\d_]+)*|.", re.DOTALL)
Weights = Mapping[str, np.ndarray]
Seen = tuple[np.ndarray, np.ndarray]
"""Keys and values of what is attended to: [n, width] each."""


class WordNetwork:
    """Raises KeyError or ValueError where sizes or weights are missing or do not fit."""

    def __init__(self, sizes: Mapping[str, Any], weights: Weights) -> None:
        if sizes["num_heads"] != 1:
            raise ValueError("a network of one head")
        self._phonemes: str = sizes["phoneme_chars"]
        self._ids = {letter: i for i, letter in enumerate(sizes["grapheme_chars"]) if i >= NUM_SPECIAL}
        self._begin, self._end = int(sizes["bos_token_id"]), int(sizes["eos_token_id"])
        self._start, self._offset = int(sizes["decoder_start_token_id"]), int(sizes["position_offset"])
        self._num_positions = int(sizes["max_position_embeddings"])
        self._eps = float(sizes["layer_norm_eps"])
        self._w = weights
        self._embedding = weights["model.shared.weight"]
        self._bias = weights["final_logits_bias"][0]
        for half, parts in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
            for part in (f"layers.0.{part}.q_proj" for part in parts):
                if weights[f"model.{half}.{part}.weight"].shape != (self._embedding.shape[1],) * 2:
                    raise ValueError(f"a square {half}.{part}")

    def __call__(self, text: str) -> str:
        """Phonemes of every run of letters; punctuation stays, all else is dropped, letters of another script
        too."""
        said: list[str] = []
        for piece in _PIECE.findall(text):
            if piece[0].isalpha():
                letters = self._known(piece)
                step = min(self._num_positions - 2, MOST_LETTERS)
                said += [self._word(letters[i : i + step]) for i in range(0, len(letters), step)]
            elif piece in PUNCTUATION:
                said.append(piece)
        return "".join(said).strip()

    def _known(self, word: str) -> str:
        """Without accents, and without punctuation around it: it has ASCII letters, and - ' . between."""
        plain = to_ascii(word.replace("’", "'"))
        return "".join(letter for letter in plain if letter in self._ids).strip("-.'")

    def _word(self, word: str) -> str:
        ids = [self._begin, *(self._ids[letter] for letter in word), self._end]
        letters = self._embed("encoder", ids)
        memory = self._layer("encoder", letters, self._seen("encoder.layers.0.self_attn", letters), None)
        heard = self._seen("decoder.layers.0.encoder_attn", memory)
        keys = values = memory[:0]
        out = [self._start]
        for place in range(self._num_positions - 1):
            last = self._embed("decoder", out[-1:], place)
            key, value = self._seen("decoder.layers.0.self_attn", last)
            keys, values = np.concatenate((keys, key)), np.concatenate((values, value))
            hidden = self._layer("decoder", last, (keys, values), heard)
            best = int(np.argmax(hidden[-1] @ self._embedding.T + self._bias))
            if best == self._end:
                break
            out.append(best)
        return "".join(self._phonemes[i] for i in out[1:] if NUM_SPECIAL <= i < len(self._phonemes))

    def _embed(self, half: str, ids: list[int], first: int = 0) -> np.ndarray:
        """first: the place of the first of them."""
        at = self._offset + first
        positions = self._w[f"model.{half}.embed_positions.weight"][at : at + len(ids)]
        return self._norm(self._embedding[ids] + positions, f"model.{half}.layernorm_embedding")

    def _layer(self, half: str, hidden: np.ndarray, own: Seen, memory: Seen | None) -> np.ndarray:
        name = f"model.{half}.layers.0"
        attended = self._attend(f"{name}.self_attn", hidden, own)
        hidden = self._norm(hidden + attended, f"{name}.self_attn_layer_norm")
        if memory is not None:
            attended = self._attend(f"{name}.encoder_attn", hidden, memory)
            hidden = self._norm(hidden + attended, f"{name}.encoder_attn_layer_norm")
        fed = self._linear(f"{name}.fc2", _gelu(self._linear(f"{name}.fc1", hidden)))
        return self._norm(hidden + fed, f"{name}.final_layer_norm")

    def _seen(self, name: str, hidden: np.ndarray) -> Seen:
        return self._linear(f"model.{name}.k_proj", hidden), self._linear(f"model.{name}.v_proj", hidden)

    def _attend(self, name: str, hidden: np.ndarray, seen: Seen) -> np.ndarray:
        keys, values = seen
        query = self._linear(f"{name}.q_proj", hidden) * hidden.shape[1] ** -0.5
        scores = query @ keys.T
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._linear(f"{name}.out_proj", weights @ values)

    def _linear(self, name: str, hidden: np.ndarray) -> np.ndarray:
        return hidden @ self._w[f"{name}.weight"].T + self._w[f"{name}.bias"]

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        centred = hidden - hidden.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self._eps)
        return scaled * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]


def _gelu(x: np.ndarray) -> np.ndarray:
    """The erf form, which numpy lacks: Abramowitz and Stegun 7.1.26, error below 1.5e-7."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    powers = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return 0.5 * x * (1 + np.sign(x) * (1 - powers * np.exp(-z * z)))
