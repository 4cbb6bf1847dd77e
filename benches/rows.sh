#!/usr/bin/env bash
# The example model with rows, experts and feed-forward parts spread over two ranks (`rows.toml`): every start against the interpreter, logits and
# continuations against cpu. BIN holds beamc and beam-run, OUT gets files; artifacts that OUT holds already are taken as they are. Where there is one
# device, both ranks share it.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
model=examples/beam-nano
for mesh in dp=2 ep=2; do
  [ -d "$out/$mesh" ] || "$bin/beamc" compile benches/rows.toml --target h200-bf16 --mesh $mesh -o "$out/$mesh"
done
[ -d "$out/cpu" ] || "$bin/beamc" compile benches/rows.toml --target cpu -o "$out/cpu"
devices=$(nvidia-smi -L | wc -l)
share=""
[ "$devices" -ge 2 ] || share="--share-device"
python3 benches/compare.py tokens $model/eval/validation.safetensors "$out/tokens.json"
python3 benches/compare.py prompts "$out/tokens.json" "$out/prompts.json"
"$bin/beam-run" score "$out/cpu" --model $model --tokens "$out/tokens.json" --out "$out/cpu.safetensors" > /dev/null
"$bin/beam-run" generate "$out/cpu" --model $model --tokens "$out/prompts.json" --max-tokens 48 > "$out/cpu.json"
for mesh in dp=2 ep=2; do
  on="--model $model --executor cuda $share"
  echo "== $mesh: a rank alone"
  "$bin/beam-run" selftest "$out/$mesh" --model $model --executor cuda --rank-of $mesh
  echo "== $mesh: two ranks, $devices devices"
  "$bin/beam-run" selftest "$out/$mesh" $on
  "$bin/beam-run" score "$out/$mesh" $on --tokens "$out/tokens.json" --out "$out/$mesh.safetensors" > /dev/null
  python3 benches/compare.py logits "$out/cpu.safetensors" "$out/$mesh.safetensors"
  "$bin/beam-run" generate "$out/$mesh" $on --tokens "$out/prompts.json" --max-tokens 48 > "$out/$mesh.json"
  python3 benches/compare.py answers "$out/cpu.json" "$out/$mesh.json"
  "$bin/beam-run" bench model "$out/$mesh" $on
done
