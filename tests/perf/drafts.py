"""Speed of one sequence with drafts against without, in the same run, on chats and on raw text, printed as a table.

    cargo build --release -p beamc -p beam-run
    pip install tokenizers
    python3 tests/perf/drafts.py [target/release ...] [--threads 2] [--runs 5] [--raw] [--fixed]

Chats are the first two evaluation prompts of each task, continued to their end; raw text is the beginnings of six files of this
repository, continued by 120 tokens. `bench model` continues each prompt without drafts and right after that with them. Several
folders of programs take turns, so that they meet the same neighbours. A row is one run: milliseconds a token without and with, and
how many times as fast.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, DRAFTER = ROOT / "examples/beam-nano", ROOT / "examples/beam-nano-dflash2"
PROMPTS_A_TASK = 2
RAW = ["README.md", "docs/performance.md", "compiler/ir/src/lib.rs", "runtime/device/src/team.rs", "benches/compare.py", "model-spec/beam.toml"]
RAW_BYTES, RAW_TOKENS = 200, 120


def chats(tokenizer):
    tasks = sorted(MODEL.glob("eval/*.jsonl"))
    lines = [line for task in tasks for line in task.read_text().splitlines()[:PROMPTS_A_TASK]]
    return [tokenizer.encode(json.loads(line)["prompt"], add_special_tokens=False).ids for line in lines]


def raw_text(tokenizer):
    begins = [(ROOT / name).read_bytes()[:RAW_BYTES].decode(errors="ignore") for name in RAW]
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in begins]


def measured(programs, artifact, tokens, decode, arguments):
    command = [f"{programs}/beam-run", "bench", "model", artifact, "--model", MODEL, "--draft", DRAFTER, "--tokens", tokens]
    command += ["--decode", str(decode), "--runs", "1", "--threads", str(arguments.threads), "--json"]
    command += ["--draft-policy", "fixed"] if arguments.fixed else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    report = json.loads(done.stdout)
    if not report["ok"]:
        sys.exit(f"{programs}: tokens with drafts are not those without")
    with_drafts = report["decode_with_drafts"]
    return report["decode"]["ms_per_token"], with_drafts["ms_per_token"], with_drafts["times_as_fast"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=[str(ROOT / "target/release")])
    parser.add_argument("--target", default="cpu-f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--raw", action="store_true", help="raw text instead of chats")
    parser.add_argument("--fixed", action="store_true", help="blocks of 8 always instead of by the policy")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    lists, decode = (raw_text(tokenizer), RAW_TOKENS) if arguments.raw else (chats(tokenizer), 400)
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder, "tokens.json")
        tokens.write_text(json.dumps({"tokens": lists}))
        found = {}
        for number, programs in enumerate(arguments.programs):
            artifact = f"{folder}/{number}"
            command = [f"{programs}/beamc", "compile", ROOT / "model-spec/beam-nano.toml", "--target", arguments.target]
            command += ["--draft", ROOT / "model-spec/beam-nano-dflash2.toml", "-o", artifact]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            found[programs] = []
        print(f"{'without':>8} {'with':>8} {'times as fast':>14}")
        for _ in range(arguments.runs):
            for number, programs in enumerate(found):
                row = measured(programs, f"{folder}/{number}", tokens, decode, arguments)
                found[programs].append(row)
                print(f"{row[0]:>8.3f} {row[1]:>8.3f} {row[2]:>14.2f}  {programs}", flush=True)
        for programs, rows in found.items():
            without, with_drafts, times = (statistics.median(column) for column in zip(*rows))
            print(f"{without:>8.3f} {with_drafts:>8.3f} {times:>14.2f}  {programs}, medians")


if __name__ == "__main__":
    main()
