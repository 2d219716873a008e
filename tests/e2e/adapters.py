"""LoRA adapters made for a test, and what a model with one of them has to answer: by arithmetic on its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANK, ALPHA = 8, 16
_SIZE = 0.06  # large enough to change every answer


def make_adapter(folder: Path, source: Path, seed: int) -> Path:
    """Changes all queries, values and down projections of a model that is laid out like Llama."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((source / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    values = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.v_proj": (values, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    numbers = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, columns, generator=numbers) * _SIZE
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, RANK, generator=numbers) * _SIZE
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}
    targets = [module.rpartition(".")[2] for module in shapes]
    (folder / "adapter_config.json").write_text(json.dumps({**told, "target_modules": targets}))
    return folder


def expected_tokens(source: Path, adapter: Path | None, prompt: str, count: int) -> list[int]:
    """Greedy, in float32, by transformers, with the adapter added to the weights."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if adapter is not None:
        sides = load_file(adapter / "adapter_model.safetensors")
        weights = model.state_dict()
        with torch.no_grad():
            for name, a in sides.items():
                if ".lora_A." in name:
                    b = sides[name.replace(".lora_A.", ".lora_B.")]
                    module = name.removeprefix("base_model.model.").replace(".lora_A", "")
                    weights[module] += ALPHA / RANK * b @ a
    prompted = AutoTokenizer.from_pretrained(source)(prompt, return_tensors="pt").input_ids
    answer = model.generate(prompted, max_new_tokens=count, do_sample=False)
    return [int(token) for token in answer[0, prompted.shape[1] :]]
