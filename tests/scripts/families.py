#!/usr/bin/env python3
"""Small random checkpoints of public families and their values, by Hugging Face Transformers on a CPU.

    pip install torch transformers==5.24.0 safetensors numpy
    python3 tests/scripts/families.py tests/fixtures/variants [NAME ...]

A case is a directory NAME as the library saves it (config.json, model.safetensors in bfloat16) and NAME.safetensors beside
it, with the tensors that variants.py describes; float32 and binary64 values are of the same bfloat16 weights.
"""

import pathlib
import shutil
import sys

import torch
import transformers

from common import converted, record, write_case

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": transformers.LlamaConfig(
        **SMALL, num_hidden_layers=3, intermediate_size=48, rms_norm_eps=1e-5, rope_parameters=LLAMA3,
    ),
    "llama-biased-tied": transformers.LlamaConfig(
        **SMALL, num_hidden_layers=2, intermediate_size=40, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
    ),
    "qwen3-moe": transformers.Qwen3MoeConfig(
        **SMALL, num_hidden_layers=3, intermediate_size=48, moe_intermediate_size=16, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True,
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SMALL, num_hidden_layers=4, intermediate_size=48, sliding_window=6, query_pre_attn_scalar=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
    ),
    "gemma3-capped": transformers.Gemma3TextConfig(
        **SMALL, num_hidden_layers=2, intermediate_size=48, sliding_window=6, query_pre_attn_scalar=8,
        layer_types=["full_attention", "sliding_attention"], final_logit_softcapping=4.0,
    ),
}


def checkpoint(name, folder):
    """Saves random weights: matrices of deviation 1/√K, vectors 0.1 around what the family starts from, 0 or 1."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(CASES[name])
    with torch.no_grad():
        for parameter in model.parameters():
            draw = torch.randn(parameter.shape)
            if parameter.dim() == 1:
                parameter.copy_((parameter + 0.1 * draw))
            else:
                parameter.copy_(draw / parameter.shape[-1] ** 0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    pathlib.Path(folder, "generation_config.json").unlink(missing_ok=True)


def build(folder):
    def make(dtype):
        experts = "grouped_mm" if dtype != torch.float64 else "eager"
        more = {"experts_implementation": experts} if "moe" in folder.name else {}
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)
        model.set_attn_implementation("plain")
        converted(model, dtype)
        return model.eval()

    return make


def main(out, *names):
    torch.set_num_threads(1)
    out = pathlib.Path(out)
    for name in names or CASES:
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint(name, folder)
        values, report = record(build(folder), lambda model: model.model.layers, SMALL["vocab_size"])
        write_case(folder, {"checkpoint": name}, values)
        size = sum(f.stat().st_size for f in folder.iterdir()) // 1024
        print(f"{name}: {report}, {size} KiB")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
