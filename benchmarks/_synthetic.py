"""A model of any size that answers nonsense at full cost: SmolLM2's tokenizer, a Llama's shape, made-up weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "1.5b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "0.7b": {
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 23,
        "num_attention_heads": 24,
        "num_key_value_heads": 6,
        "head_dim": 64,
    },
}
_VOCABULARY = 49152
_NOISE = 8_000_000


def make(folder: Path, like: Path, size: str = "1.5b") -> Path:
    """Two files of bfloat16, made once: 2.93 GB for "1.5b", half of it for "0.7b", which is 2.9 GB in float32.

    ``like``: the folder whose tokenizer and config to take."""
    import torch
    from safetensors.torch import save_file

    if (folder / "model.safetensors.index.json").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shape = SIZES[size]
    config = json.loads((like / "config.json").read_text()) | shape
    config |= {"tie_word_embeddings": False, "vocab_size": _VOCABULARY}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(like / name, folder)
    generator = torch.Generator().manual_seed(1)
    noise = (torch.randn(_NOISE, generator=generator) * 0.02).to(torch.bfloat16)

    def weight(*sizes: int) -> torch.Tensor:
        """Slices of one stretch of noise, each from elsewhere in it: drawing 1.5 billion numbers takes minutes."""
        count = torch.Size(sizes).numel()
        start = int(torch.randint(0, 1_000_000, (1,), generator=generator))
        return noise.repeat((count + start) // _NOISE + 1)[start : start + count].view(*sizes).clone()

    layers, hidden, inner = shape["num_hidden_layers"], shape["hidden_size"], shape["intermediate_size"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    where: dict[str, str] = {}
    for number in (0, 1):
        name = f"model-0000{number + 1}-of-00002.safetensors"
        tensors = {"model.embed_tokens.weight": weight(_VOCABULARY, hidden)} if number == 0 else {}
        if number == 1:
            tensors = {"lm_head.weight": weight(_VOCABULARY, hidden), "model.norm.weight": ones.clone()}
        for layer in range(number * layers // 2, (number + 1) * layers // 2):
            at = f"model.layers.{layer}."
            tensors |= {
                at + "self_attn.q_proj.weight": weight(hidden, hidden),
                at + "self_attn.k_proj.weight": weight(keys, hidden),
                at + "self_attn.v_proj.weight": weight(keys, hidden),
                at + "self_attn.o_proj.weight": weight(hidden, hidden),
                at + "mlp.gate_proj.weight": weight(inner, hidden),
                at + "mlp.up_proj.weight": weight(inner, hidden),
                at + "mlp.down_proj.weight": weight(hidden, inner),
                at + "input_layernorm.weight": ones.clone(),
                at + "post_attention_layernorm.weight": ones.clone(),
            }
        save_file(tensors, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder
