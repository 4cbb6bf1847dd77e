#!/usr/bin/env python3
"""Compares what `beam-run quantise` writes with what llm-compressor and ModelOpt write of the same checkpoint.

    pip install torch transformers==5.24.0 compressed-tensors==0.20.1 llmcompressor==0.14.0.1 nvidia-modelopt==0.47.0 datasets safetensors numpy
    python3 tests/scripts/public_quantisers.py [--programs target/release] [FORMAT ...]

The checkpoint is the library's Beam model at odd dimensions with seeded weights. Names, order, formats, shapes and bytes of all tensors
must be equal, but for numbers found by running the model (inputs, cached rows), whose largest distance is printed and bounded; so must be
what the configurations say, but for the list of what stays, which must name the same matrices, and the producer.
"""

import argparse
import contextlib
import copy
import fnmatch
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")

import torch
from transformers import BeamForCausalLM

import odd_checkpoints as odd

CASE = {"dims": odd.BLOCKS | {"experts": 5, "picked": 2, "kv": 11}}
FOUND_BY_RUNNING = ("input_scale", "k_scale", "v_scale")
PRODUCER = ("producer", "version")
KEPT = ("ignore", "exclude_modules")
# Two programs round in bf16, each in its own order, before a maximum is taken: some steps of 2^-8. A maximum over something
# else, or a forgotten factor, is farther off.
FARTHEST = 0.05


@contextlib.contextmanager
def caches_by_their_old_name():
    """Attention that takes its cache under the name by which compressed-tensors finds those that keep rows."""
    inner = odd.hf.BeamAttention.forward

    def forward(self, hidden_states, position_embeddings=None, attention_mask=None, attention_scaling=None, past_key_values=None, **more):
        more.pop("cache", None)
        return inner(self, hidden_states, position_embeddings, attention_mask, attention_scaling, cache=past_key_values, **more)

    odd.hf.BeamAttention.forward = forward
    try:
        yield
    finally:
        odd.hf.BeamAttention.forward = inner


def fp8(cached=False):
    def write(plain, out, ids):
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier

        model = BeamForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
        how, data = {"targets": "Linear", "scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}, {}
        if cached:
            from datasets import Dataset
            from tokenizers import Tokenizer, models
            from transformers import PreTrainedTokenizerFast

            how["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
            rows = {"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()}
            # The calibration asks for a tokenizer and has nothing to do with it.
            words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), unk_token="a", pad_token="a")
            data = {"dataset": Dataset.from_dict(rows), "num_calibration_samples": 1, "max_seq_length": ids.shape[1], "processor": words, "pipeline": "basic"}
        with caches_by_their_old_name():
            oneshot(model=model, recipe=QuantizationModifier(**how), **data)
            model.save_pretrained(out, save_compressed=True)

    return write


def modelopt(name, cached=False):
    def write(plain, out, ids):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint

        model = BeamForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).eval()
        how = copy.deepcopy(getattr(mtq, name))
        if cached:
            how["quant_cfg"] = how["quant_cfg"] + copy.deepcopy(mtq.FP8_KV_CFG)["quant_cfg"]
        mtq.quantize(model, how, lambda model: model(ids, use_cache=False))
        export_hf_checkpoint(model, export_dir=out)

    return write


FORMATS = {
    "fp8": (fp8(), "fp8", []),
    "fp8-kv": (fp8(True), "fp8", ["calibrate", "kv"]),
    "nvfp4": (modelopt("NVFP4_DEFAULT_CFG"), "nvfp4", ["calibrate"]),
    "nvfp4-kv": (modelopt("NVFP4_DEFAULT_CFG", True), "nvfp4", ["calibrate", "kv"]),
    "nvfp4-weights": (modelopt("W4A16_NVFP4_CFG"), "nvfp4-weights", []),
}


def tensors(folder):
    data = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__", None)
    found = {name: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for name, e in header.items()}
    return found, [*header], metadata


def told(folder, file):
    path = folder / file
    return json.loads(path.read_text()) if path.exists() else None


def stripped(value):
    """Without who made it and the list of what stays."""
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k not in (*PRODUCER, *KEPT)}
    return value


def kept(value):
    """Entries of every list of what stays."""
    if not isinstance(value, dict):
        return []
    return [e for key, inner in value.items() for e in ((inner or []) if key in KEPT else kept(inner))]


def named(entries, tensors):
    """Matrices that a list names: by name, by a pattern from its start, or by a glob."""
    matrices = {name.removesuffix(".weight") for name, (_, shape, _) in tensors.items() if name.endswith(".weight") and len(shape) == 2}
    hit = lambda m, e: re.match(e[3:], m) if e.startswith("re:") else m == e or m.endswith(f".{e}") or fnmatch.fnmatchcase(m, e)
    return {m for m in matrices if any(hit(m, e) for e in entries)}


def number(format, shape, data):
    """A number alone; one in bf16 is the upper half of one in float32."""
    return struct.unpack("<f", data if format == "F32" else b"\0\0" + data)[0]


def compare(theirs, ours):
    wrong = []
    (a, names, metadata), (b, own, same) = tensors(theirs), tensors(ours)
    for what, one, two in (("names", sorted(a), sorted(b)), ("order", names, own), ("metadata", metadata, same)):
        if one != two:
            wrong.append(f"{what} differ: {[n for n in two if n not in one][:3]} for {[n for n in one if n not in two][:3]}")
    by_running, equal, farthest = 0, 0, 0.0
    for name in a.keys() & b.keys():
        if a[name][:2] != b[name][:2]:
            wrong.append(f"{name}: {b[name][:2]} for {a[name][:2]}")
        elif name.endswith(FOUND_BY_RUNNING):
            by_running += 1
            one, two = (number(*x) for x in (a[name], b[name]))
            apart = abs(one / two - 1)
            farthest = max(farthest, apart)
            if not apart <= FARTHEST:
                wrong.append(f"{name}: {two} for {one}")
        elif a[name][2] == b[name][2]:
            equal += 1
        else:
            wrong.append(f"{name}: {sum(x != y for x, y in zip(a[name][2], b[name][2]))} of {len(a[name][2])} bytes differ")
    for file in ("config.json", "hf_quant_config.json"):
        one, two = stripped(told(theirs, file)), stripped(told(ours, file))
        for key in (one or {}).keys() | (two or {}).keys():
            said, own_said = ((told_by or {}).get(key, "absent") for told_by in (one, two))
            if said != own_said:
                wrong.append(f"{file}, {key}: {json.dumps(own_said)} for {json.dumps(said)}")
    line = f"{equal} tensors equal byte for byte, their order and formats too"
    if by_running:
        line += f"; {by_running} numbers found by running differ by {farthest:.2%} at most"
    return wrong, line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(FORMATS)}; all if absent")
    parser.add_argument("--programs", type=pathlib.Path, default=odd.ROOT / "target/release", help="folder of beamc and beam-run")
    args = parser.parse_args()
    programs = args.programs.resolve()
    torch.set_num_threads(1)
    failed = False
    with tempfile.TemporaryDirectory() as made:
        work = pathlib.Path(made)
        model = BeamForCausalLM(odd.config(CASE)).float().eval()
        odd.weights_of(model, 3)
        narrow = {n: p for n, p in model.named_parameters() if not n.endswith("mlp.gate.weight")}
        for parameter in narrow.values():
            parameter.data = parameter.data.bfloat16()
        model.config.dtype = torch.bfloat16
        plain = work / "plain"
        model.save_pretrained(plain)
        ids = torch.tensor([[(11 * i * i + 5 * i + 3) % CASE["dims"]["vocab"] for i in range(odd.PROMPT)]])
        calibration = work / "tokens.json"
        calibration.write_text(json.dumps({"tokens": ids.tolist()}))
        subprocess.run([programs / "beamc", "compile", plain, "--target", "cpu", "-o", work / "artifact"], check=True, capture_output=True)
        for name in args.formats or FORMATS:
            write, word, how = FORMATS[name]
            theirs, ours = work / f"theirs-{name}", work / f"ours-{name}"
            write(plain, theirs, ids)
            command = [programs / "beam-run", "quantise", "--model", plain, "--format", word, "--out", ours, "--artifact", work / "artifact"]
            command += ["--calibrate", calibration] if how else []
            command += ["--kv-scales"] if "kv" in how else []
            subprocess.run(command, check=True, capture_output=True)
            wrong, line = compare(theirs, ours)
            failed |= bool(wrong)
            print("\n".join(f"WRONG {name}: {w}" for w in wrong) or f"ok {name}: {line}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
