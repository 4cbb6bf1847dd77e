"""beam-nano on this CPU: `beam-run` against Hugging Face transformers, in one run.

    python3 -m venv venv && venv/bin/pip install "torch==2.15.0" "transformers==5.24.0"
    cargo build --release -p beamc -p beam-run
    venv/bin/python tests/perf/nano_vs_transformers.py --model examples/beam-nano

Same checkpoint, same threads, same dtype, same numbers of tokens. Rounds alternate between the two, so that whatever else the machine does
falls on both; a round's time is the middle of its runs, the ratio is that of the middles of all rounds. transformers runs
in its own default (SDPA attention, grouped expert products) under `inference_mode`: `forward` with a cache and greedy
choice by `argmax`, without the overhead of `generate`. `beam-run bench model` times its engine: scheduling, steps, greedy
sampling. Prompts of the latter differ from run to run, so nothing is reused.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
# Target of beamc and dtype of transformers with the same formats between operations.
DTYPES = {"bf16": ("cpu", torch.bfloat16), "f32": ("cpu-f32", torch.float32)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "examples/beam-nano")
    parser.add_argument("--bin", type=Path, default=ROOT / "target/release", help="folder of beamc and beam-run")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prompt that is read")
    parser.add_argument("--context", type=int, default=64, help="tokens in the cache before decoding")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind in a round")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args()


class Peer:
    """transformers, in this process."""

    def __init__(self, args, dtype):
        self.args = args
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
        self.generator = torch.Generator().manual_seed(1)

    def tokens(self, n):
        return torch.randint(0, self.model.config.vocab_size - 10, (1, n), generator=self.generator)

    def prefill(self):
        ids = self.tokens(self.args.prefill)
        start = time.perf_counter()
        out = self.model(ids, use_cache=True, logits_to_keep=1)
        out.logits[0, -1].argmax().item()
        return time.perf_counter() - start

    def decode(self):
        out = self.model(self.tokens(self.args.context), use_cache=True, logits_to_keep=1)
        cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        start = time.perf_counter()
        for _ in range(self.args.decode):
            token = self.model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            token.item()
        return (time.perf_counter() - start) / self.args.decode

    def round(self):
        with torch.inference_mode():
            self.prefill(), self.decode()
            runs = range(self.args.runs)
            return statistics.median(self.prefill() for _ in runs), statistics.median(self.decode() for _ in runs)


def ours(args, artifact, threads):
    """One round of `beam-run bench model`."""
    command = [args.bin / "beam-run", "bench", "model", artifact, "--model", args.model, "--threads", threads,
               "--prefill", args.prefill, "--context", args.context, "--decode", args.decode, "--runs", args.runs, "--json"]
    told = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
    report = json.loads(told)
    return report["prefill"]["median_s"], report["decode"]["median_s"] / args.decode


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return "unknown"


def main():
    args = arguments()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {processor()}, {os.cpu_count()} processors")
    print(f"load {os.getloadavg()[0]:.1f} before\n")
    print("| dtype | threads | what | transformers | beam-run | ratio | rounds |\n|---|---|---|---|---|---|---|")
    worst, rows = float("inf"), []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in args.dtypes:
            target, torch_dtype = DTYPES[dtype]
            artifact = Path(folder) / dtype
            compile_command = [args.bin / "beamc", "compile", ROOT / "model-spec/beam-nano.toml", "--target", target, "-o", artifact]
            subprocess.run([str(c) for c in compile_command], check=True, capture_output=True)
            peer = Peer(args, torch_dtype)
            for threads in args.threads:
                torch.set_num_threads(threads)
                theirs, mine = [], []
                for _ in range(args.rounds):
                    theirs.append(peer.round())
                    # Worker threads of the one must be asleep before the other is timed.
                    time.sleep(0.2)
                    mine.append(ours(args, artifact, threads))
                for i, what in enumerate([f"prefill of {args.prefill}", "decode, a token"]):
                    a, b = [r[i] for r in theirs], [r[i] for r in mine]
                    ratio = statistics.median(a) / statistics.median(b)
                    each = " ".join(f"{x / y:.1f}" for x, y in zip(a, b))
                    worst = min(worst, ratio)
                    rows.append({"dtype": dtype, "threads": threads, "what": what, "transformers_s": a, "beam_s": b, "ratio": ratio})
                    print(f"| {dtype} | {threads} | {what} | {statistics.median(a) * 1e3:.2f} ms | {statistics.median(b) * 1e3:.2f} ms | {ratio:.1f} | {each} |", flush=True)
    print(f"\nleast ratio {worst:.2f}; load {os.getloadavg()[0]:.1f} after")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "load": os.getloadavg()}, indent=1) + "\n")
    return 0 if worst >= 2.0 else 1


if __name__ == "__main__":
    sys.exit(main())
