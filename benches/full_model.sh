#!/usr/bin/env bash
# Kernels of the full model at its shapes on one CUDA device, beside PyTorch. BIN holds beamc, OUT gets files.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
"$bin/beamc" compile model-spec/beam.toml --target h200-bf16 --mesh tp=1 -o "$out/full"
for kind in dense picked decode prompt; do
  python3 benches/kernels.py "$out/full" "$out/$kind.json" $kind
done
