#!/usr/bin/env bash
# Whole steps of six layers of the full model on one CUDA device, with made-up weights, and every kernel start of them. BIN holds beamc and beam-run, OUT
# gets files; an artifact that OUT holds already is taken as it is. With SELFTEST=1 every region is checked against the interpreter first.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
[ -d "$out/slice" ] || "$bin/beamc" compile benches/slice.toml --target h200-bf16 --mesh tp=1 -o "$out/slice"
made="--synthetic 7 --executor cuda"
[ -z "${SELFTEST:-}" ] || "$bin/beam-run" selftest "$out/slice" $made --on-device
"$bin/beam-run" bench steps "$out/slice" $made --context 4096 --sequences 1,8,32 --prefill 8192 --trace "$out/slice.trace.json"
