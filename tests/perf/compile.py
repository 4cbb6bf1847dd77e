"""Time and memory that the compiler takes for the full model, printed as a table.

    cargo build --release -p beamc
    python3 tests/perf/compile.py [target/release/beamc]

Each row is the median of five runs of a fresh process; memory is the largest resident set among them. `--check` also
interprets every pass before and after at small dims, and is run once.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

SPEC = "model-spec/beam.toml"
ROWS = [
    ("tp=1", "h200-bf16", ["--mesh", "tp=1"], 5),
    ("tp=4", "h200-bf16", ["--mesh", "tp=4"], 5),
    ("tp=8", "h200-bf16", ["--mesh", "tp=8"], 5),
    ("ep=4", "h200-bf16", ["--mesh", "ep=4"], 5),
    ("tp=4", "gb300-bf16", ["--mesh", "tp=4"], 5),
    ("tp=4 --check", "h200-bf16", ["--mesh", "tp=4", "--check"], 1),
]


def run(command):
    """Seconds and peak resident megabytes of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status != 0:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    return seconds, usage.ru_maxrss / 1024


def main():
    beamc = sys.argv[1] if len(sys.argv) > 1 else "target/release/beamc"
    print(f"{'target':<12} {'mesh':<14} {'seconds':>8} {'MB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for name, target, arguments, times in ROWS:
            command = [beamc, "compile", SPEC, "--target", target, "-o", f"{folder}/artifact", *arguments]
            runs = [run(command) for _ in range(times)]
            seconds, megabytes = statistics.median(s for s, _ in runs), max(m for _, m in runs)
            print(f"{target:<12} {name:<14} {seconds:>8.2f} {megabytes:>6.0f}")


if __name__ == "__main__":
    main()
