#!/usr/bin/env python3
"""Quantised checkpoints of odd dimensions as other people's tools make them, run by this project and by Transformers.

    pip install torch transformers==5.24.0 compressed-tensors==0.20.1 nvidia-modelopt==0.47.0 safetensors numpy
    python3 tests/scripts/odd_checkpoints.py [--programs target/release] [--keep DIR] [NAME ...]

Codes and scales of FP8 are made by compressed-tensors and which modules by its own matching of names, blocks of NVFP4 by ModelOpt. The
values are those of the library's model in float32 with the codes multiplied out, and its inputs or cached rows passed through
the format where the target does so. A case that must be refused names the code. A line per case and target; the exit code
says whether all are as they should be.
"""

import argparse
import contextlib
import fnmatch
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.utils.match import is_match
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import BeamConfig, BeamForCausalLM
from transformers.models.beam import modeling_beam as hf

ROOT = pathlib.Path(__file__).resolve().parents[2]
E4M3 = torch.float8_e4m3fn
PROMPT = 29


# ---- cases -----------------------------------------------------------------------------------------------------------

DIMS = {
    "layers": 4, "hidden": 67, "heads": 3, "kv": 1, "head_dim": 22, "ffn": 101, "experts": 7, "groups": 1, "kept": 1, "picked": 3,
    "expert_ffn": 37, "vocab": 131,
}
BLOCKS = DIMS | {"hidden": 112, "heads": 11, "head_dim": 16, "ffn": 208, "experts": 3, "picked": 2, "expert_ffn": 80, "vocab": 193}
CASES = {}


def case(name, format, dims, leave, **how):
    CASES[name] = {"format": format, "dims": dims, "leave": leave} | how


# FP8: which modules stay is said by names, dotted ends and expressions.
case("fp8-primes", "fp8", DIMS, ["lm_head"])
case(
    "fp8-expressions-shards", "fp8",
    DIMS | {"hidden": 53, "heads": 5, "kv": 5, "head_dim": 6, "experts": 15, "groups": 5, "kept": 2, "vocab": 211},
    [r"re:.*lm_head", r"re:model\.layers\.[02]\.self_attn\.(q|k|v)_proj$", r"re:.*\.experts\..*\.down_proj"],
    shards=5, scale=torch.float32, flat=True,
)
case("fp8-cached-scales", "fp8", DIMS | {"experts": 5, "kv": 3}, ["lm_head"], cached="beside", shards=2)
case("fp8-cached-plainly", "fp8", DIMS | {"experts": 3, "picked": 2}, ["lm_head", "re:.*self_attn.*"], cached="none")
case(
    "fp8-two-groups-head", "fp8", DIMS | {"hidden": 59, "heads": 7, "head_dim": 10}, [],
    targets=[[r"re:.*self_attn\.[qkvo]_proj", "lm_head"], ["model.layers.0.mlp.down_proj", r"re:.*experts\.\d+\.(gate|up)_proj"]],
)
case("fp8-weights", "fp8", DIMS | {"vocab": 97}, ["lm_head", "re:.*mlp.*"], inputs=False)
case("fp8-one-expert-plain", "fp8", DIMS, ["lm_head", r"re:.*experts\.2\..*"], refused="B04")
case("fp8-looks-around", "fp8", DIMS | {"hidden": 61}, [r"re:(?!.*(self_attn|experts)).*", r"re:.*(?<!gate)(?<!up)_proj$"])
case("fp8-packed-experts", "fp8", DIMS | {"experts": 5}, ["lm_head"], packed=True, shards=2)
case("fp8-unlisted-plain", "fp8", DIMS, ["lm_head"], silent=["model.layers.1.self_attn.o_proj", "model.layers.2.self_attn.o_proj"])
case(
    "fp8-layers-apart", "fp8", DIMS | {"layers": 5, "experts": 6, "hidden": 71},
    [r"re:^lm_head$", r"re:^model\.layers\.2\.mlp\.experts\.\d+\.(gate|up|down)_proj$", r"re:^(model\.)?layers\.[13]\.self_attn\.(q|o)_proj$"],
    shards=3, backwards=True,
)
case("fp8-some-cached", "fp8", DIMS | {"layers": 5, "kv": 3}, ["lm_head"], cached="beside", cached_layers=[0, 3])

# NVFP4: patterns, both places of the configuration, numbers there or not.
case("nvfp4-both-places", "nvfp4", BLOCKS, ["lm_head", "*.mlp.gate", "model.layers.0*"], places=("config", "beside"))
case("nvfp4-beside-only", "nvfp4", BLOCKS | {"experts": 5, "kv": 11}, ["lm_head", "*router*", "model.layers.*.mlp.gate"],
     places=("beside",), shards=3, cached="modules")
case("nvfp4-no-numbers", "nvfp4", BLOCKS | {"experts": 7, "picked": 5}, ["lm_head", "model.layers.1.self_attn*", "*.mlp.gate"],
     numbers=False, one=True, cached="none")
case("nvfp4-weights", "nvfp4", BLOCKS | {"heads": 3, "head_dim": 48, "expert_ffn": 16}, ["lm_head", "model.layers.[01].mlp*", "*.mlp.gate"],
     inputs=False, key="modules_to_not_convert")
case("nvfp4-head", "nvfp4", BLOCKS | {"vocab": 227, "hidden": 176, "experts": 15, "groups": 3, "kept": 2}, ["*.mlp.gate"], places=("beside", "config"))
case("nvfp4-odd-o", "nvfp4", BLOCKS | {"heads": 3, "head_dim": 22}, ["lm_head", "*.mlp.gate", "*.o_proj"])
case("nvfp4-odd-blocks", "nvfp4", BLOCKS | {"heads": 3, "head_dim": 22}, ["lm_head", "*.mlp.gate"], refused="P0703")
case("nvfp4-ranks-cut-blocks", "nvfp4", BLOCKS | {"heads": 4, "kv": 2, "vocab": 194}, ["lm_head", "*.mlp.gate"], refused="P0506", mesh="tp=2")
case("nvfp4-parts-apart", "nvfp4", BLOCKS, ["lm_head", "*.mlp.gate", "*.k_proj", "model.layers.2.mlp.experts*"], key="exclude_modules")
case("nvfp4-unlisted-plain", "nvfp4", BLOCKS, ["lm_head", "*.mlp.gate"], silent=["model.layers.1.self_attn.gate_proj"])


def config(case):
    d = case["dims"]
    kinds = ["full" if (i + 1) % 3 == 0 else "sliding" for i in range(d["layers"])]
    return BeamConfig(
        vocab_size=d["vocab"], hidden_size=d["hidden"], intermediate_size=d["ffn"], num_hidden_layers=d["layers"],
        num_attention_heads=d["heads"], num_key_value_heads=d["kv"], head_dim=d["head_dim"], moe_intermediate_size=d["expert_ffn"],
        num_experts=d["experts"], num_experts_per_tok=d["picked"], n_group=d["groups"], topk_group=d["kept"], sliding_window=7,
        layer_types=[f"{k}_attention" for k in kinds], mlp_layer_types=["dense" if i < 2 else "sparse" for i in range(d["layers"])],
        dtype="bfloat16",
    )


# ---- codes -----------------------------------------------------------------------------------------------------------


def rows_of_fp8(weight, dtype):
    """Codes and scales of rows by compressed-tensors."""
    args = QuantizationArgs(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False)
    low, high = weight.amin(dim=1, keepdim=True), weight.amax(dim=1, keepdim=True)
    scale, zero = calculate_qparams(low, high, args)
    scale = scale.to(dtype)
    return quantize(x=weight, scale=scale, zero_point=zero, args=args, dtype=E4M3), scale


def blocks_of_nvfp4(weight):
    """Packed codes, scales of blocks and the number of the matrix by ModelOpt."""
    number = NVFP4QTensor.get_weights_scaling_factor_2(weight)
    codes, scales, number = NVFP4QTensor.quantize(weight, 16, weights_scaling_factor_2=number)
    return codes._quantized_data, scales, number.float()


def multiplied_out(codes, scales, number):
    magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
    value = torch.where(nibbles >= 8, -magnitude[nibbles & 7], magnitude[nibbles & 7])
    return value * (scales.float() * number).repeat_interleave(16, dim=-1)


def token_of_fp8(x):
    scale = x.abs().amax(dim=-1, keepdim=True) / 448
    by = torch.where(scale == 0, scale, 1 / scale)
    return (x * by).clamp(-448, 448).to(E4M3).float() * scale


def block_of_nvfp4(x, number):
    blocks = x.unflatten(-1, (-1, 16))
    scale = (blocks.abs().amax(-1) / (6 * number)).clamp(max=448).to(E4M3).float()
    step = (scale * number)[..., None]
    scaled = torch.where(step > 0, blocks / step.clamp_min(1e-38), 0 * blocks)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middle = (grid[1:] + grid[:-1]) / 2
    # A middle goes to the neighbour whose code is even.
    code = sum(((scaled.abs() >= m) if i % 2 else (scaled.abs() > m)).long() for i, m in enumerate(middle.tolist()))
    return (torch.sign(scaled) * grid[code] * step).flatten(-2)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def weights_of(model, seed):
    """Values by name; a float32 model with parameters that bf16 holds, but for routers."""
    draw = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n.endswith("bias")}
    for name in sorted(named):
        tensor = named[name]
        n = torch.randn(tensor.shape, generator=draw)
        if name.endswith("norm.weight"):
            n = 1 + 0.25 * n
        elif name.endswith("e_score_correction_bias"):
            n = 0.2 * n
        elif "embed" not in name and tensor.dim() > 1:
            n = n * {"lm_head.weight": 7, "gate.weight": 3}.get(".".join(name.split(".")[-2:]), 1) / math.sqrt(tensor.shape[-1])
        narrow = not (name.endswith("mlp.gate.weight") or name.endswith("correction_bias"))
        tensor.data.copy_(n.bfloat16().float() if narrow else n)


def stays(module, case):
    """Whether a module keeps its matrix, by the rules of the tool that the configuration is written for."""
    if module.endswith("embed_tokens") or module.endswith("mlp.gate") or module.endswith("norm"):
        return True
    if case["format"] == "fp8":
        linear = torch.nn.Linear(1, 1)
        groups = case.get("targets", [["Linear"]])
        return not any(is_match(module, linear, group, case["leave"]) for group in groups)
    parts = [module, *module.split(".")]
    # The block that experts are in may be named in place of each.
    if ".experts." in module:
        parts.append(module.split(".experts.")[0] + ".experts")
    return any(fnmatch.fnmatchcase(part, pattern) for pattern in case["leave"] for part in parts)


def inputs_of(model, ids):
    """The largest magnitude that each module takes, experts of a layer together."""
    seen = {}

    def rule(name, x):
        name = name if ".experts." not in name else name.split(".experts.")[0] + ".experts." + name.rsplit(".", 1)[1]
        seen[name] = max(seen.get(name, 0.0), float(x.abs().max()))
        return x

    with watched(model, rule):
        model(ids, use_cache=False)
    return lambda name: seen[
        name if ".experts." not in name else name.split(".experts.")[0] + ".experts." + name.rsplit(".", 1)[1]
    ]


def together(module):
    """What modules share their numbers with: those that take the same input."""
    parent, _, leaf = module.rpartition(".")
    return f"{parent}.{'down' if leaf in ('o_proj', 'down_proj') else 'in'}"


def quantised(case, state, inputs):
    """Tensors on disk, their float32 values, and the rule of each module's inputs."""
    disk, values, rules = {}, {}, {}
    modules = [n.removesuffix(".weight") for n, t in state.items() if n.endswith(".weight") and t.dim() == 2]
    silent = case.get("silent", []) + ([m for m in modules if ".experts." in m] if case.get("packed") else [])
    modules = [m for m in modules if not stays(m, case) and m not in silent]
    keep_wide = ("mlp.gate.weight", "correction_bias")
    for name, tensor in state.items():
        if name.removesuffix(".weight") not in modules or not name.endswith(".weight"):
            disk[name] = tensor if name.endswith(keep_wide) else tensor.bfloat16()
            values[name] = tensor
    largest = {}
    for module in modules:
        largest[together(module)] = max(largest.get(together(module), 0.0), inputs(module))
    for module in modules:
        name, weight = f"{module}.weight", state[f"{module}.weight"].bfloat16()
        if case["format"] == "fp8":
            codes, scale = rows_of_fp8(weight, case.get("scale", torch.bfloat16))
            values[name] = codes.float() * scale.float()
            disk[name], disk[f"{module}.weight_scale"] = codes, scale.flatten() if case.get("flat") else scale
            rules[module] = token_of_fp8
            continue
        share = [state[f"{m}.weight"].bfloat16() for m in modules if together(m) == together(module)]
        number = NVFP4QTensor.get_weights_scaling_factor_2(torch.cat([w.flatten() for w in share])).float()
        codes, scales, _ = NVFP4QTensor.quantize(weight, 16, weights_scaling_factor_2=number)
        codes = codes._quantized_data
        # ModelOpt fills up the last block of a row.
        values[name] = multiplied_out(codes, scales, number)[:, : weight.shape[1]]
        shape = (1,) if case.get("one") else ()
        disk |= {name: codes, f"{module}.weight_scale": scales, f"{module}.weight_scale_2": number.reshape(shape)}
        into = torch.tensor(largest[together(module)] / (6 * 448))
        if case.get("inputs", True) and case.get("numbers", True):
            disk[f"{module}.input_scale"] = into.reshape(shape)
        else:
            into = torch.tensor(1.0)
        rules[module] = lambda x, into=into: block_of_nvfp4(x, into)
    if case.get("packed"):
        pack(disk, case["dims"])
    return disk, values, rules


def pack(disk, dims):
    """Experts of a layer in one tensor, as the library's own parameters have them."""
    for layer in range(dims["layers"]):
        of = f"model.layers.{layer}.mlp.experts"
        take = lambda e, leaf: disk.pop(f"{of}.{e}.{leaf}_proj.weight")
        if f"{of}.0.up_proj.weight" in disk:
            experts = range(dims["experts"])
            disk[f"{of}.gate_up_proj"] = torch.stack([torch.cat([take(e, "gate"), take(e, "up")]) for e in experts])
            disk[f"{of}.down_proj"] = torch.stack([take(e, "down") for e in experts])


def cached_numbers(case, disk, layers):
    """Numbers of cached rows, and their tensors where the case has them."""
    places = {"modules": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"), "beside": ("self_attn.k_scale", "self_attn.v_scale")}
    names = places.get(case.get("cached"))
    if names is None:
        return [(1.0, 1.0)] * layers
    numbers = [(0.011 + 0.003 * l, 0.017 - 0.002 * l) for l in range(layers)]
    numbers = [pair if l in case.get("cached_layers", range(layers)) else (1.0, 1.0) for l, pair in enumerate(numbers)]
    for l, pair in enumerate(numbers):
        if pair == (1.0, 1.0):
            continue
        for name, number in zip(names, pair):
            disk[f"model.layers.{l}.{name}"] = torch.tensor([number] if case["format"] == "fp8" else number)
    return [tuple(float(torch.tensor(n)) for n in pair) for pair in numbers]


def said_of_fp8(case):
    def arguments(strategy, dynamic):
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": dynamic, "group_size": None}

    cached = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
    group = {
        "weights": arguments("channel", False) | {"observer": "memoryless_minmax"}, "output_activations": None, "format": "float-quantized",
        "input_activations": arguments("token", True) if case.get("inputs", True) else None,
    }
    groups = {f"group_{i}": {"targets": t} | group for i, t in enumerate(case.get("targets", [["Linear"]]))}
    return {
        "config_groups": groups, "format": "float-quantized", "global_compression_ratio": None, "ignore": case["leave"],
        "kv_cache_scheme": cached if case.get("cached") else None, "moe_sparsity_config": None, "quant_method": "compressed-tensors",
        "quantization_status": "compressed", "sparsity_config": {}, "transform_config": {}, "version": "0.20.1",
    }


def said_of_nvfp4(case):
    """What stands in config.json and what beside it."""
    algorithm = "NVFP4" if case.get("inputs", True) else "W4A16_NVFP4"
    producer = {"name": "modelopt", "version": "0.47.0"}
    four = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    group = {"weights": four, "targets": ["Linear"]} | ({"input_activations": four} if case.get("inputs", True) else {})
    flat = {
        "config_groups": {"group_0": group}, case.get("key", "ignore"): case["leave"], "quant_algo": algorithm,
        "producer": producer, "quant_method": "modelopt",
    }
    if case.get("cached"):
        flat["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    beside = {
        "quant_algo": algorithm, "kv_cache_quant_algo": "FP8" if case.get("cached") else None, "group_size": 16,
        "exclude_modules": case["leave"],
    }
    return flat, {"producer": producer, "quantization": beside}


def write(case, folder, settings, disk):
    folder.mkdir(parents=True)
    places = case.get("places", ("config",))
    if case["format"] == "fp8":
        settings["quantization_config"] = said_of_fp8(case)
    else:
        flat, beside = said_of_nvfp4(case)
        if "config" in places:
            settings["quantization_config"] = flat
        if "beside" in places:
            (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    (folder / "config.json").write_text(json.dumps(settings))
    shards = case.get("shards", 1)
    if shards == 1:
        save_file({n: t.contiguous() for n, t in disk.items()}, folder / "model.safetensors", metadata={"format": "pt"})
        return
    files, names = {}, {}
    for i, (name, tensor) in enumerate(disk.items()):
        file = f"model-{i * 7 % shards + 1:05}-of-{shards:05}.safetensors"
        files.setdefault(file, {})[name] = tensor.contiguous()
        names[name] = file
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in disk.values())
    if case.get("backwards"):
        names = dict(reversed(names.items()))
    index = {"metadata": {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# ---- the library's values --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(model, rule):
    """Passes what each matrix takes through a rule of its module's name."""
    hooks, inner = [], hf.BeamExperts.forward
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: (rule(name, args[0]), *args[1:])))
        if isinstance(module, hf.BeamExperts):
            module.called = name

    def experts(self, hidden, ids, weights):
        out = torch.zeros_like(hidden)
        for expert in ids.unique().tolist():
            row, place = torch.where(ids == expert)
            name = f"{self.called}.{expert}."
            gate, up = self.gate_up_proj[expert].chunk(2)
            x = hidden[row]
            h = torch.nn.functional.silu(rule(name + "gate_proj", x) @ gate.T) * (rule(name + "up_proj", x) @ up.T)
            y = rule(name + "down_proj", h) @ self.down_proj[expert].T
            out.index_add_(0, row, y * weights[row, place, None])
        return out

    hf.BeamExperts.forward = experts
    try:
        yield
    finally:
        hf.BeamExperts.forward = inner
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def cached(numbers):
    inner = hf.eager_attention_forward

    def attend(module, query, key, value, mask, **more):
        k, v = numbers[module.layer_idx]
        key, value = ((x / n).clamp(-448, 448).to(E4M3).float() * n for x, n in ((key, k), (value, v)))
        return inner(module, query, key, value, mask, **more)

    hf.eager_attention_forward = attend
    try:
        yield
    finally:
        hf.eager_attention_forward = inner


def loaded(settings, state, work):
    """A float32 model of the library with these tensors."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if k != "quantization_config"}))
    save_file({n: t.float().contiguous() for n, t in state.items()}, work / "model.safetensors", metadata={"format": "pt"})
    options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
    return BeamForCausalLM.from_pretrained(work, **options).eval()


# ---- comparison ------------------------------------------------------------------------------------------------------

# How far from the library, as the fixtures have it: largest difference over the largest logit, or mean cosine of rows.
CLOSE, TOKEN, BLOCK, CACHED = ("largest", 5e-4 / 30), ("cosine", 0.995), ("cosine", 0.99), ("cosine", 0.99)


def plan(case):
    """Targets, what is expected of each, and how near."""
    narrow = case.get("inputs", True)
    yield "cpu-f32", "plain", CLOSE
    if case["format"] == "fp8":
        yield "cpu-f32-fp8", "inputs" if narrow else "plain", TOKEN if narrow else CLOSE
    else:
        yield "cpu-f32-nvfp4", "inputs" if narrow else "plain", BLOCK if narrow else CLOSE
    if case.get("cached"):
        yield "cpu-f32-kv8", "cached", CACHED


@torch.no_grad()
def wanted(kind, model, rules, numbers, ids):
    if kind == "plain":
        return model(ids, use_cache=False).logits[0]
    if kind == "cached":
        with cached(numbers):
            return model(ids, use_cache=False).logits[0]
    with watched(model, lambda name, x: rules[name](x) if name in rules else x):
        return model(ids, use_cache=False).logits[0]


def call(*command):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)


def compared(found, expected, measure, plain):
    """Near enough, and nearer than to what would be if nothing but weights were narrow."""
    how, limit = measure
    if how == "largest":
        value = float((found - expected).abs().max() / expected.abs().max())
        return value <= limit, f"largest difference {value:.1e} of the largest logit, allowed {limit:.1e}"
    value = float(torch.nn.functional.cosine_similarity(found.double(), expected.double(), dim=-1).mean())
    share = float((found - expected).norm() / (plain - expected).norm())
    good = value >= limit and share <= 0.5
    return good, f"mean cosine {value:.5f}, wanted {limit}; {share:.1e} of the way to wide inputs and rows, allowed 0.5"


def refusal(case, beamc, folder, work):
    mesh = ["--mesh", case["mesh"]] if "mesh" in case else []
    done = call(beamc, "compile", folder, "--target", plan(case).__next__()[0], *mesh, "-o", work / "artifact")
    good = done.returncode == 1 and case["refused"] in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("error")]
    return good, f"refused: {(told or ['NOT REFUSED'])[0]}"


@torch.no_grad()
def run(name, case, programs, work, seed):
    settings = config(case)
    model = BeamForCausalLM(settings).float().eval()
    weights_of(model, seed)
    plain = work / "plain"
    model.save_pretrained(plain)
    state = load_file(plain / "model.safetensors")
    settings = json.loads((plain / "config.json").read_text()) | {"dtype": "bfloat16"}
    ids = torch.tensor([[(11 * i * i + 5 * i + 3) % case["dims"]["vocab"] for i in range(PROMPT)]])
    model.set_attn_implementation("eager")
    inputs = inputs_of(model, ids)
    disk, values, rules = quantised(case, state, inputs)
    numbers = cached_numbers(case, disk, case["dims"]["layers"])
    folder = work / "checkpoint"
    write(case, folder, settings, disk)
    beamc, beam_run = programs / "beamc", programs / "beam-run"
    if "refused" in case:
        yield "", *refusal(case, beamc, folder, work)
        return
    done = call(beamc, "import", folder, "-o", work / "imported.toml")
    checked = call(beamc, "check", work / "imported.toml")
    said = [line for line in (done.stderr + checked.stderr).splitlines() if line.startswith(("warning", "error"))]
    yield "import, check", done.returncode + checked.returncode == 0, "; ".join(said)
    reference = loaded(settings, values, work / "values")
    tokens, out = work / "tokens.json", work / "logits.safetensors"
    tokens.write_text(json.dumps({"tokens": ids.tolist()}))
    for target, kind, measure in plan(case):
        artifact = work / target
        done = call(beamc, "compile", folder, "--target", target, "-o", artifact)
        if done.returncode == 0:
            done = call(beam_run, "score", artifact, "--model", folder, "--tokens", tokens, "--out", out)
        if done.returncode:
            yield target, False, done.stderr.strip()
            continue
        found = load_file(out)["logits.0"]
        plain = wanted("plain", reference, rules, numbers, ids)
        yield target, *compared(found, wanted(kind, reference, rules, numbers, ids), measure, plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases, all if absent")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="folder of beamc and beam-run")
    parser.add_argument("--keep", type=pathlib.Path, help="folder to leave the checkpoints in")
    args = parser.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for seed, (name, case) in enumerate(CASES.items()):
        if args.names and name not in args.names:
            continue
        with tempfile.TemporaryDirectory() as made:
            work = pathlib.Path(made) if args.keep is None else args.keep / name
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            for what, good, text in run(name, case, args.programs.resolve(), work, seed):
                wrong += not good
                print(f"{'ok  ' if good else 'WRONG'} {name} {what}: {text}", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
