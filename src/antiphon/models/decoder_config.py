"""The sizes of a Qwen3-style decoder, as data, read from a config.json. Free of torch, so that a scheduler
may ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.core.errors import CheckpointError

MOST_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes of a decoder, and what it has. `num_experts` 0 means a dense MLP; `shared_expert_size` 0
    means none.

    qk_norm            q and k are normalised per head
    qkv_bias           their projections have a bias
    mrope_interleaved  M-RoPE's rows take turns among the frequencies; else each has a run of them
    rope_scaling       as Llama 3 scales (factor, low, high, original positions); None as computed from theta
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int] | None = None
    num_experts: int = 0
    num_picks: int = 0
    expert_size: int = 0
    shared_expert_size: int = 0
    normalise_picks: bool = True
    qk_norm: bool = True
    qkv_bias: bool = False
    mrope_interleaved: bool = True
    rope_scaling: tuple[float, float, float, int] | None = None

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any],
        name: str = "decoder",
        mrope_section: tuple[int, int, int] | None = None,
        **has: bool,
    ) -> DecoderConfig:
        """From a text config as released or as transformers 5 writes it; raises CheckpointError.

        `mrope_section` stands in where the file has none; `has` are fields that a family fixes and no file
        names.
        """
        refuse_unsupported(config, name)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        time, height, width = rope.get("mrope_section") or mrope_section or (0, 0, 0)
        try:
            return cls(
                hidden_size=config["hidden_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=config["num_attention_heads"],
                num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
                head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
                intermediate_size=config["intermediate_size"],
                rms_eps=config.get("rms_norm_eps", 1e-6),
                rope_theta=rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"],
                mrope_section=(time, height, width) if time else None,
                num_experts=config.get("num_experts", config.get("num_local_experts")) or 0,
                num_picks=config.get("num_experts_per_tok") or 0,
                expert_size=config.get("moe_intermediate_size") or 0,
                shared_expert_size=config.get("shared_expert_intermediate_size") or 0,
                normalise_picks=config.get("norm_topk_prob", True),
                rope_scaling=read_scaling(rope),
                **has,
            )
        except KeyError as error:
            raise CheckpointError(f"config.json: {name} has no {error.args[0]!r}") from None

    def __post_init__(self) -> None:
        if not 0 < self.num_layers <= MOST_LAYERS:
            raise CheckpointError(
                f"config.json: {self.num_layers} layers, but a decoder has 1 to {MOST_LAYERS}: fetch it again"
            )
        if self.num_heads % self.num_kv_heads:
            raise CheckpointError(
                f"{self.num_heads} heads are not a multiple of {self.num_kv_heads} KV heads"
            )
        if self.mrope_section is not None and sum(self.mrope_section) != self.head_dim // 2:
            raise CheckpointError(
                f"mrope_section {self.mrope_section} must sum to half the head_dim {self.head_dim}"
            )

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of the q, k and v parts of the fused projection."""
        kv = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv, kv

    @property
    def kv_shape(self) -> tuple[int, int]:
        """(num_kv_heads, head_dim): what one token's key (or value) holds in one layer."""
        return self.num_kv_heads, self.head_dim


def read_scaling(rope: Mapping[str, Any]) -> tuple[float, float, float, int] | None:
    """Llama 3's four numbers; raises KeyError."""
    if rope_type(rope) != "llama3":
        return None
    positions = rope["original_max_position_embeddings"]
    return rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], positions


def rope_type(rope: Mapping[str, Any]) -> str:
    """`mrope`, as old files have it, says nothing that its sections don't."""
    found = rope.get("rope_type") or rope.get("type") or "default"
    return "default" if found == "mrope" else found


def refuse_unsupported(config: Mapping[str, Any], name: str) -> None:
    """Options of the family that this decoder doesn't have; better refused than silently wrong."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = {
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
        "attention_bias": (config.get("attention_bias") or False, False),
        "mlp_bias": (config.get("mlp_bias") or False, False),
        "use_sliding_window": (config.get("use_sliding_window") or False, False),
        "mlp_only_layers": (list(config.get("mlp_only_layers") or []), []),
        "decoder_sparse_step": (config.get("decoder_sparse_step") or 1, 1),
        "rope_type": ("default" if rope_type(rope) == "llama3" else rope_type(rope), "default"),
    }
    wrong = [
        f"{key} is {got!r}, only {want!r} is supported" for key, (got, want) in found.items() if got != want
    ]
    if wrong:
        raise CheckpointError(f"config.json: {name}: " + "; ".join(wrong))


class Section:
    """A part of config.json that says where it is when a key is missing."""

    def __init__(self, values: Mapping[str, Any], path: str) -> None:
        self.values, self.path = values, path

    def __getitem__(self, key: str) -> Any:
        value = self.values.get(key)
        if value is None:
            raise CheckpointError(f"config.json: {self.path or 'the file'} has no {key!r}")
        return value

    def section(self, key: str) -> Section:
        value = self[key]
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config.json: {self.path}{key} is not an object")
        return Section(value, f"{self.path}.{key}" if self.path else key)
