"""Model architectures of transformers at the layer sizes of published models, and at toy sizes.

Sizes: the configurations that Mixtral-8x7B, Qwen3-30B-A3B, DeepSeek-V3 and gpt-oss-20b are published with. The vocabulary is
smaller than theirs, because logits are compared and not text.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from moeguard.core.case import Case
from moeguard.core.errors import MoeguardError, UnknownNameError

Size = Literal["real", "toy"]
VOCABULARY = {"real": 32000, "toy": 320}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers.

    module, prefix: where its classes are and how their names begin. names: the fields of its configuration for the experts'
    intermediate size, the number of experts, and of those that a token has. real, toy: H, I, E, K. heads: query heads, key
    heads and the size of a head, real and toy. more: further fields, for both sizes. activation, bias: as in a case.
    """

    name: str
    module: str
    prefix: str
    names: tuple[str, str, str]
    real: tuple[int, int, int, int]
    heads: tuple[int, int, int]
    toy: tuple[int, int, int, int] = (64, 64, 8, 2)
    toy_heads: tuple[int, int, int] = (4, 2, 16)
    more: Mapping[str, Any] = field(default_factory=dict)
    more_toy: Mapping[str, Any] = field(default_factory=dict)
    activation: Mapping[str, Any] = field(default_factory=lambda: {"kind": "swiglu"})
    bias: bool = False

    def shape(self, size: Size) -> tuple[int, int, int, int]:
        """H, I, E and K."""
        return self.real if size == "real" else self.toy

    def case(self, size: Size, recipe: str, tokens: int, seed: int) -> Case:
        """The case of one of its MoE layers; ``seed`` chooses the weights. Raises CaseError where the recipe cannot be."""
        hidden, intermediate, experts, top_k = self.shape(size)
        shape = {"num_tokens": tokens, "hidden_size": hidden, "intermediate_size": intermediate, "num_experts": experts,
                 "top_k": top_k}
        return Case.from_json(json.dumps({
            "schema": 1, "shape": shape, "recipe": recipe, "seed": seed, "activation": dict(self.activation),
            "weights": {"bias": self.bias}}), source=f"{self.name}, {size}")

    def config(self, size: Size, layers: int) -> Any:
        """transformers' configuration. Raises MoeguardError where transformers is missing."""
        hidden, intermediate, experts, top_k = self.shape(size)
        heads, key_heads, head = self.heads if size == "real" else self.toy_heads
        sized = dict(zip(self.names, (intermediate, experts, top_k), strict=True))
        fields = {"vocab_size": VOCABULARY[size], "hidden_size": hidden, "num_hidden_layers": layers,
                  "num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": head, "use_cache": True,
                  "tie_word_embeddings": False, "attn_implementation": "eager", "bos_token_id": 0, "eos_token_id": 0,
                  "pad_token_id": 0, **self.more, **(self.more_toy if size == "toy" else {}), **sized}
        return getattr(transformers(self.module), f"{self.prefix}Config")(**fields)

    def build(self, config: Any) -> Any:
        """The causal language model, without memory for its parameters."""
        import torch

        with torch.device("meta"):
            return getattr(transformers(self.module), f"{self.prefix}ForCausalLM")(config).eval()


ARCHITECTURES: dict[str, Architecture] = {
    one.name: one
    for one in (
        Architecture("mixtral", "mixtral", "Mixtral", ("intermediate_size", "num_local_experts", "num_experts_per_tok"),
                     (4096, 14336, 8, 2), (32, 8, 128)),
        Architecture("qwen3_moe", "qwen3_moe", "Qwen3Moe", ("moe_intermediate_size", "num_experts", "num_experts_per_tok"),
                     (2048, 768, 128, 8), (32, 4, 128), (64, 64, 8, 4),
                     more={"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}),
        Architecture("deepseek_v3", "deepseek_v3", "DeepseekV3",
                     ("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
                     (7168, 2048, 256, 8), (128, 128, 64), (64, 64, 16, 4), (4, 4, 16),
                     more={"first_k_dense_replace": 0, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5},
                     more_toy={"n_group": 4, "topk_group": 2, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
                               "qk_nope_head_dim": 16, "v_head_dim": 16, "intermediate_size": 64}),
        Architecture("gpt_oss", "gpt_oss", "GptOss", ("intermediate_size", "num_local_experts", "num_experts_per_tok"),
                     (2880, 2880, 32, 4), (64, 8, 64), (64, 64, 8, 4),
                     activation={"kind": "swiglu_oai", "limit": 7.0}, bias=True),
    )
}


def architecture(name: str) -> Architecture:
    """The architecture called ``name``. Raises UnknownNameError."""
    if name not in ARCHITECTURES:
        raise UnknownNameError("--arch", name, list(ARCHITECTURES))
    return ARCHITECTURES[name]


def transformers(module: str) -> Any:
    """A model's package of transformers. Raises MoeguardError where it is not there."""
    try:
        return importlib.import_module(f"transformers.models.{module}")
    except ImportError as error:
        raise MoeguardError(f"eval model needs transformers 5 (pip install 'moeguard[model]'): {error}") from error
