#!/usr/bin/env bash
# Whole steps of six layers of the full model on one CUDA device, with made-up weights. BIN holds beamc and steps_on_device
# (an example of the crate `device`), OUT gets files; an artifact that OUT holds already is taken as it is.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
[ -d "$out/slice" ] || "$bin/beamc" compile benches/slice.toml --target h200-bf16 --mesh tp=1 -o "$out/slice"
"$bin/steps_on_device" "$out/slice" 4096 "$out/starts.json"
