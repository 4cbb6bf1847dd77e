#!/usr/bin/env python3
"""Values for the variants of Beam in model-spec/variants, by Hugging Face Transformers on a CPU.

    pip install torch transformers==5.24.0 safetensors numpy
    python3 tests/scripts/variants.py tests/fixtures/variants [NAME ...]

Each variant is the library's Beam model with another config or with one of its functions replaced, as written below;
our specs are not read. A case is NAME.json, the small sizes, and NAME.safetensors:

    prompt               token ids
    exact                logits of the prompt with every operation in binary64
    f32, bf16            logits of the library in these dtypes
    greedy               token ids that follow the prompt, in float32
    stream.L, normed.L   bf16: what layer L takes, the residual stream and its norm; the last L is what the head takes

Weights are the numbers that `--synthetic SEED` names (docs/numerics.md), so none are stored.
"""

import pathlib
import sys

import numpy as np
import torch
from torch import nn

from common import converted, record, synthetic, write_case
from transformers.models.beam import configuration_beam, modeling_beam as hf

SEED = 11
BASE = {
    "dims": {
        "layers": 7, "hidden": 32, "heads": 6, "kv_heads": 1, "head_dim": 16, "ffn": 48, "experts": 16, "groups": 4,
        "expert_ffn": 24, "picked": 4, "vocab": 64,
    },
    "values": {"window": 6, "kept_groups": 2},
}


def config(case):
    d, v = case["dims"], case["values"]
    return configuration_beam.BeamConfig(
        vocab_size=d["vocab"], hidden_size=d["hidden"], intermediate_size=d["ffn"], num_hidden_layers=d["layers"],
        num_attention_heads=d["heads"], num_key_value_heads=d["kv_heads"], head_dim=d["head_dim"],
        moe_intermediate_size=d["expert_ffn"], num_experts=d["experts"], num_experts_per_tok=d["picked"],
        n_group=d["groups"], topk_group=v["kept_groups"], sliding_window=v["window"],
        **case.get("config", {}),
    )


# ---- weights: our names beside the library's -------------------------------------------------------------------------

MODEL = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
LAYER = {
    "input_norm": "input_layernorm.weight",
    "attn_out_norm": "post_attention_layernorm.weight",
    "mlp_in_norm": "pre_feedforward_layernorm.weight",
    "mlp_out_norm": "post_feedforward_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "gate": "self_attn.gate_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "gate_bias": "self_attn.gate_bias",
    "sink": "self_attn.sinks",
    "ffn_gate": "mlp.gate_proj.weight",
    "ffn_up": "mlp.up_proj.weight",
    "ffn_down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "router_bias": "mlp.gate.e_score_correction_bias",
    "s_gate": "mlp.shared_experts.gate_proj.weight",
    "s_up": "mlp.shared_experts.up_proj.weight",
    "s_down": "mlp.shared_experts.down_proj.weight",
}


def fill(model, layers):
    """Sets every parameter; what a variant does not use keeps the library's value and is not reached."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())

    def put(name, theirs):
        if theirs in state:
            state[theirs].data.copy_(torch.from_numpy(synthetic(SEED, name, tuple(state[theirs].shape))))

    for name, theirs in MODEL.items():
        put(name, theirs)
    for l in range(layers):
        for name, theirs in LAYER.items():
            put(f"{l}.{name}", f"model.layers.{l}.{theirs}")
        packed = f"model.layers.{l}.mlp.experts.gate_up_proj"
        if packed in state:
            experts, double, hidden = state[packed].shape
            gate, up = (synthetic(SEED, f"{l}.{n}", (experts, double // 2, hidden)) for n in ("x_gate", "x_up"))
            state[packed].data.copy_(torch.from_numpy(np.concatenate([gate, up], axis=1)))
            put(f"{l}.x_down", f"model.layers.{l}.mlp.experts.down_proj")


def build(case):
    def make(dtype):
        settings = config(case)
        settings._attn_implementation = "plain"
        settings._experts_implementation = "grouped_mm" if dtype != torch.float64 else "eager"
        model = hf.BeamForCausalLM(settings).eval()
        case.get("edit", lambda model: None)(model)
        fill(model, case["dims"]["layers"])
        if case.get("tied"):
            model.lm_head.weight = model.model.embed_tokens.weight
        converted(model, dtype)
        for module in model.modules():  # the router is never narrower than float32
            if isinstance(module, hf.BeamTopKRouter) and dtype == torch.bfloat16:
                module.weight.data = module.weight.data.float()
                module.e_score_correction_bias = module.e_score_correction_bias.float()
        if dtype == torch.bfloat16:  # their values before they were narrowed
            for l, layer in enumerate(model.model.layers):
                gate = getattr(layer.mlp, "gate", None)
                if gate is not None:
                    for name, to in (("router", gate.weight), ("router_bias", gate.e_score_correction_bias)):
                        to.data.copy_(torch.from_numpy(synthetic(SEED, f"{l}.{name}", tuple(to.shape))))
        return model

    return make


# ---- variants --------------------------------------------------------------------------------------------------------

CASES = {}


def case(name, config=None, edit=None, tied=False, **sizes):
    made = {group: dict(numbers) for group, numbers in BASE.items()}
    for key, value in sizes.items():
        group = "values" if key in BASE["values"] else "dims"
        made[group][key] = value
    CASES[name] = made | {"config": config or {}, "tied": tied} | ({"edit": edit} if edit else {})


def attention_of(model):
    return [layer.self_attn for layer in model.model.layers]


def no_gate(model):
    for attention in attention_of(model):
        # The sigmoid of a huge number is 1 in every dtype, and a product with 1 is exact.
        attention.gate_proj.forward = lambda x, rows=attention.gate_proj.out_features: torch.full(
            (*x.shape[:-1], rows), 1e4, dtype=x.dtype
        )


def softmax_router(model):
    def forward(self, hidden_states):
        logits = nn.functional.linear(hidden_states.view(-1, self.hidden_dim).float(), self.weight.float())
        scores = logits.softmax(dim=-1)
        weights, indices = scores.topk(self.top_k, dim=-1)
        return logits, weights / weights.sum(dim=-1, keepdim=True), indices

    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)


def shared_expert(model):
    for layer in model.model.layers:
        if isinstance(layer.mlp, hf.BeamMoE):
            moe = layer.mlp
            moe.shared_experts = hf.BeamMLP(model.config, model.config.moe_intermediate_size)

            def forward(x, moe=moe):
                return hf.BeamMoE.forward(moe, x) + moe.shared_experts(x)

            moe.forward = forward


def attention_sink(model):
    for attention in attention_of(model):
        attention.sinks = nn.Parameter(torch.zeros(model.config.num_attention_heads))


def no_sandwich(model):
    for layer in model.model.layers:
        layer.post_attention_layernorm = nn.Identity()
        layer.post_feedforward_layernorm = nn.Identity()


def partial_rope(model):
    """Half of a head turns: frequencies for half the width, and cosine 1, sine 0 for the rest."""
    settings, rotary = model.config, model.model.rotary_emb
    width = settings.head_dim // 2
    base = settings.rope_parameters["sliding_attention"]["rope_theta"]
    inverse = 1.0 / (base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
    for attention in attention_of(model):
        plain = attention.forward

        def forward(hidden_states, position_embeddings, attention_mask, attention=attention, plain=plain, **more):
            if position_embeddings is None:
                return plain(hidden_states, position_embeddings, attention_mask, **more)
            q_norm, k_norm, positions = attention.q_norm, attention.k_norm, torch.arange(hidden_states.shape[1])
            angles = (positions[:, None].float() * inverse)[:, None, :]
            cos, sin = angles.cos(), angles.sin()

            def turned(norm):
                def run(x):  # [1, T, heads, head_dim]
                    x = norm(x)
                    a, b, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
                    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], dim=-1)

                return run

            attention.q_norm.forward, attention.k_norm.forward = (
                turned(lambda x, n=n: type(n).forward(n, x)) for n in (q_norm, k_norm)
            )
            out = plain(hidden_states, None, attention_mask, **more)
            del attention.q_norm.forward, attention.k_norm.forward
            return out

        attention.forward = forward


def fp32_residual(model):
    def add(branch, residual, n):
        return branch.float() * (1.0 / n**0.5) + residual.float() * ((n - 1) / n) ** 0.5

    def norm(self, x):
        return hf.BeamRMSNorm.forward(self, x).to(self.weight.dtype)

    embed = model.model.embed_tokens
    embed.forward = lambda ids: nn.Embedding.forward(embed, ids).float()
    for module in model.modules():
        if isinstance(module, hf.BeamRMSNorm):
            module.forward = norm.__get__(module)
    model.residual_add = add


def sglang_combine(model):
    for layer in model.model.layers:
        if isinstance(layer.mlp, hf.BeamMoE):
            moe = layer.mlp

            def forward(x, moe=moe):
                rows = x.view(-1, x.shape[-1])
                _, weights, ids = moe.gate(rows)
                experts, total = moe.experts, torch.zeros(rows.shape, dtype=weights.dtype)
                for slot in range(ids.shape[1]):
                    gate_up = torch.einsum("th,toh->to", rows.float(), experts.gate_up_proj[ids[:, slot]].float())
                    h = experts._apply_gate(gate_up.to(rows.dtype))
                    y = torch.einsum("ti,thi->th", h.float(), experts.down_proj[ids[:, slot]].float())
                    total = total + (weights[:, slot, None] * y).to(rows.dtype).to(total.dtype)
                return (total * moe.routed_scaling_factor).to(x.dtype).view(x.shape)

            moe.forward = forward


def no_ssmax(model):
    model.attention_scaling = lambda positions: torch.ones(1, 1, positions.shape[-1], 1)


case("window-1024", window=12)
case("no-gate", edit=no_gate)
case("softmax-router", edit=softmax_router)
case("shared-expert", edit=shared_expert)
case("attention-sink", edit=attention_sink)
case("no-sandwich", edit=no_sandwich)
case("partial-rope", edit=partial_rope)
case("gqa-16", kv_heads=2)
case("experts-4-of-64", experts=8, picked=2)
case("dense-only", config={"mlp_layer_types": ["dense"] * 7})
case("fp32-residual", edit=fp32_residual)
case("sglang-combine", edit=sglang_combine)
case("no-cap", config={"final_logit_softcapping": None})
case("no-ssmax", edit=no_ssmax)
case("tied-head", tied=True)


class Patched:
    """Functions of the library's module that a model brings its own of, while it runs."""

    def __init__(self, model):
        self.new = {
            "depth_scaled_residual_add": getattr(model, "residual_add", None),
            "compute_attention_scaling": getattr(model, "attention_scaling", None),
        }

    def __enter__(self):
        self.old = {name: getattr(hf, name) for name in self.new}
        for name, function in self.new.items():
            if function is not None:
                setattr(hf, name, function)

    def __exit__(self, *_):
        for name, function in self.old.items():
            setattr(hf, name, function)


def main(out, *names):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = pathlib.Path(out)
    for name in names or CASES:
        made = CASES[name]
        values, report = record(build(made), lambda model: model.model.layers, made["dims"]["vocab"], Patched)
        sizes = {"seed": SEED, "dims": made["dims"], "values": made["values"]}
        write_case(out / name, sizes, values)
        print(f"{name}: {report}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
