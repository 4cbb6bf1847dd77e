#!/usr/bin/env python3
"""Tokens that a verified block leaves, task by task, against the table that another implementation recorded.

    cargo build --release -p beamc -p beam-run
    python3 tests/scripts/draft_acceptance.py target/release [TASK ...]

Compiles the example model with its drafter, serves it with blocks of 4 and 8, with and without the selector, and lets it answer the
evaluation prompts over HTTP, one after the other. Blocks and tokens are those that /metrics counts. Ends with 1 if a mean is
more than 0.05 off. Needs nothing but Python.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL, DRAFTER = ROOT / "examples/beam-nano", ROOT / "examples/beam-nano-dflash2"
OFF = 0.05
# Blocks of 4, of 4 without the selector, of 8, of 8 without the selector.
RECORDED = {
    "arithmetic": (3.92, 3.92, 7.62, 7.62), "code": (3.93, 3.93, 7.63, 7.63), "facts": (3.87, 3.82, 7.34, 7.10),
    "json": (3.90, 3.90, 7.47, 7.29), "lists": (3.84, 3.85, 7.26, 7.26), "memory": (3.48, 3.45, 6.11, 6.00),
    "retrieval": (3.34, 3.34, 5.67, 5.70), "smalltalk": (3.92, 3.92, 7.49, 7.49), "strings": (3.73, 3.71, 6.82, 6.47),
    "tools": (3.85, 3.85, 7.29, 7.17),
}
MODES = [("4", []), ("4", ["--no-draft-selector"]), ("8", []), ("8", ["--no-draft-selector"])]


def ask(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def counts(url):
    """Tokens that blocks have left, and blocks."""
    lines = [line.rsplit(" ", 1) for line in ask(url, "/metrics").splitlines() if not line.startswith("#")]
    value = {name.split("{")[0]: float(number) for name, number in lines}
    ends = ("spec_committed_tokens_total", "spec_verify_calls_total")
    return [next(v for name, v in value.items() if name.endswith(end)) for end in ends]


def measured(programs, artifact, tasks, mode):
    rows, more = mode
    command = [programs / "beam-run", "serve", artifact, "--model", MODEL, "--draft", DRAFTER, "--port", "0", "--json"]
    command += ["--draft-tokens", rows, "--draft-policy", "fixed", "--max-running", "1", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            means = {}
            for task in tasks:
                before = counts(url)
                for line in (MODEL / f"eval/{task}.jsonl").read_text().splitlines():
                    body = {"prompt": json.loads(line)["prompt"], "temperature": 0, "max_tokens": 400}
                    ask(url, "/v1/completions", body)
                committed, blocks = (b - a for a, b in zip(before, counts(url)))
                means[task] = committed / blocks
            return means
        finally:
            server.kill()


def main():
    programs, tasks = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or list(RECORDED)
    with tempfile.TemporaryDirectory() as work:
        artifact = pathlib.Path(work) / "artifact"
        compile = [programs / "beamc", "compile", MODEL, "--draft", DRAFTER, "--target", "cpu-f32", "-o", artifact]
        subprocess.run(compile, check=True)
        found = [measured(programs, artifact, tasks, mode) for mode in MODES]
    print("| task | block 4 | without selector | block 8 | without selector |\n|---|---|---|---|---|")
    worst = 0.0
    for task in tasks:
        pairs = list(zip((means[task] for means in found), RECORDED[task]))
        print(f"| {task} | " + " | ".join(f"{mean:.3f} (recorded {known})" for mean, known in pairs) + " |")
        worst = max(worst, *(abs(mean - known) for mean, known in pairs))
    print(f"most that a mean is off: {worst:.3f}")
    sys.exit(worst > OFF)


if __name__ == "__main__":
    main()
