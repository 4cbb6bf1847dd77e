#!/usr/bin/env python3
"""Measures the example model in every format: the tables of docs/numerics.md, "Formats of the example model".

    python3 tests/scripts/formats.py [--programs target/release]

The model is quantised by `beam-run quantise` (inputs calibrated on the first documents of its validation tokens), compiled for the
processor, and run three ways: losses on its own recorded answers, losses on all validation documents, and its held-out
questions asked over HTTP. Needs the two programs and nothing else.
"""

import argparse
import concurrent.futures
import json
import struct
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "examples/beam-nano"
# Column, format of the checkpoint, target.
FORMATS = [
    ("FP8", "fp8", "cpu-fp8"),
    ("FP8, weights", "fp8", "cpu"),
    ("NVFP4", "nvfp4", "cpu-nvfp4"),
    ("NVFP4, weights", "nvfp4", "cpu"),
]
CALIBRATION_DOCUMENTS = 24


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{command}: {done.stderr}")
    return done.stdout


def tensors(path):
    """Numbers of a safetensors file, integers only."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    letters = {"I32": "i", "U8": "B"}
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            letter = letters[entry["dtype"]]
            out[name] = struct.unpack(f"<{(end - begin) // struct.calcsize(letter)}{letter}", body[begin:end])
    return out


def documents():
    file = tensors(NANO / "eval/validation.safetensors")
    offsets = file["offsets"]
    return [list(file["tokens"][a:b]) for a, b in zip(offsets, offsets[1:])]


def own_answers():
    prompts = json.loads((NANO / "eval/golden.json").read_text())["prompts"]
    given = [p["prompt_ids"] for p in prompts]
    return {"tokens": [p["prompt_ids"] + p["bfloat16"]["ids"] for p in prompts], "prompts": [len(g) for g in given]}


def correct(case, choice):
    """Whether an answer is the expected one, as tests/tests/nano.rs has it."""
    message, expected = choice["message"], case["expected"]
    if case["check"] == "tool_calls":
        calls = [c.get("function", c) for c in expected["tool_calls"]]
        found = [c["function"] for c in message.get("tool_calls") or []]
        same = [(c["name"], c["arguments"]) for c in calls] == [(c["name"], json.loads(c["arguments"])) for c in found]
        return choice["finish_reason"] == "tool_calls" and same
    answer, wanted = message.get("content") or "", expected["content"]
    if case["check"] == "json":
        try:
            equal = json.loads(answer) == json.loads(wanted)
        except ValueError:
            equal = False
    else:
        equal = answer == wanted
    return choice["finish_reason"] == "stop" and equal


def ask(beam_run, artifact, model):
    """Right answers and questions by task."""
    command = [beam_run, "serve", artifact, "--model", model, "--port", "0"]
    server = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        url = next(w for line in server.stdout for w in line.split() if w.startswith("http://")).rstrip("/")

        def one(case):
            body = {"messages": case["messages"], "temperature": 0, "max_tokens": 400}
            if case["tools"]:
                body["tools"] = case["tools"]
            request = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request) as answer:
                return correct(case, json.load(answer)["choices"][0])

        files = sorted((NANO / "eval").glob("*.jsonl"))
        cases = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        tasks = {}
        # An answer does not depend on what else runs.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for case, good in zip(cases, pool.map(one, cases)):
                tasks[case["task"]] = (tasks.get(case["task"], (0, 0))[0] + good, tasks.get(case["task"], (0, 0))[1] + 1)
        return tasks
    finally:
        server.kill()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release", help="folder of beamc and beam-run")
    parser.add_argument("--beamc", type=Path, help="the compiler, if it is elsewhere")
    args = parser.parse_args()
    beam_run = (args.programs / "beam-run").resolve()
    beamc = (args.beamc or args.programs / "beamc").resolve()
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        reference = work / "bf16"
        run(beamc, "compile", NANO, "--target", "cpu", "-o", reference)
        calibration = work / "calibration.json"
        calibration.write_text(json.dumps({"tokens": documents()[:CALIBRATION_DOCUMENTS]}))
        models = {}
        for name in ("fp8", "nvfp4"):
            models[name] = work / name
            more = ["--artifact", reference, "--calibrate", calibration] if name == "nvfp4" else []
            run(beam_run, "quantise", "--model", NANO, "--format", name, "--out", models[name], *more)
        sides = [("BF16", NANO, reference)]
        compare = []
        for column, name, target in FORMATS:
            artifact = work / f"{name}-{target}"
            run(beamc, "compile", models[name], "--target", target, "-o", artifact)
            sides.append((column, models[name], artifact))
            compare += ["--compare", artifact, models[name]]
        losses = []
        for what, body in (("its own answers", own_answers()), ("validation", {"tokens": documents()})):
            file = work / "tokens.json"
            file.write_text(json.dumps(body))
            out = run(beam_run, "score", reference, "--model", NANO, "--tokens", file, "--json", *compare)
            losses.append((what, json.loads(out)))
        print("| | " + " | ".join(column for column, _, _ in sides) + " |\n|---|" + "---|" * len(sides))
        for what, found in losses:
            cells = [f"{m['mean_nll']:.5f} ({100 * m['nll_change']:+.2f} %)" for m in found["models"]]
            print(f"| loss on {what}, {found['tokens']} tokens, nats | " + " | ".join(cells) + " |")
        found = losses[0][1]["models"]
        print("| same best token | " + " | ".join(f"{100 * m['same_best']:.2f} %" for m in found) + " |")
        for layer in range(len(found[0]["layer_errors"])):
            cells = [f"{100 * m['layer_errors'][layer]:.2f} %" for m in found]
            print(f"| error after layer {layer} | " + " | ".join(cells) + " |")
        print("| error of logits | " + " | ".join(f"{100 * m['logits_error']:.2f} %" for m in found) + " |")
        answers = [ask(beam_run, artifact, model) for _, model, artifact in sides]
        for task in answers[0]:
            print(f"| {task} | " + " | ".join("{} of {}".format(*a[task]) for a in answers) + " |")
        total = [(sum(g for g, _ in a.values()), sum(n for _, n in a.values())) for a in answers]
        print("| all tasks | " + " | ".join("{} of {}".format(*t) for t in total) + " |")


if __name__ == "__main__":
    main()
