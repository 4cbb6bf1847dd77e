#!/usr/bin/env bash
# The example model on two ranks of CUDA devices: every start against the interpreter, logits and continuations against cpu, over HTTP. BIN holds beamc
# and beam-run, OUT gets files; artifacts that OUT holds already are taken as they are. Where there is one device, both ranks share it.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
model=examples/beam-nano
[ -d "$out/ranks" ] || "$bin/beamc" compile model-spec/beam-nano.toml --target h200-bf16 --mesh tp=2 -o "$out/ranks"
[ -d "$out/cpu" ] || "$bin/beamc" compile model-spec/beam-nano.toml --target cpu -o "$out/cpu"
devices=$(nvidia-smi -L | wc -l)
on="--model $model --executor cuda"
[ "$devices" -ge 2 ] || on="$on --share-device"
echo "== a rank alone"
"$bin/beam-run" selftest "$out/ranks" --model $model --executor cuda --rank-of tp=2
echo "== two ranks, $devices devices"
"$bin/beam-run" selftest "$out/ranks" $on
python3 benches/compare.py tokens $model/eval/validation.safetensors "$out/tokens.json"
"$bin/beam-run" score "$out/cpu" --model $model --tokens "$out/tokens.json" --out "$out/cpu.safetensors" > /dev/null
"$bin/beam-run" score "$out/ranks" $on --tokens "$out/tokens.json" --out "$out/ranks.safetensors" > /dev/null
python3 benches/compare.py logits "$out/cpu.safetensors" "$out/ranks.safetensors"
python3 benches/compare.py prompts "$out/tokens.json" "$out/prompts.json"
"$bin/beam-run" generate "$out/cpu" --model $model --tokens "$out/prompts.json" --max-tokens 48 > "$out/cpu.json"
"$bin/beam-run" generate "$out/ranks" $on --tokens "$out/prompts.json" --max-tokens 48 > "$out/ranks.json"
python3 benches/compare.py answers "$out/cpu.json" "$out/ranks.json"
"$bin/beam-run" bench model "$out/ranks" $on

"$bin/beam-run" serve "$out/ranks" $on --port 8078 > "$out/serve.log" 2>&1 &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do curl -sf http://127.0.0.1:8078/health > /dev/null && break; sleep 0.2; done
python3 benches/compare.py served http://127.0.0.1:8078 "$out/prompts.json" "$out/ranks.json"
for clients in 1 8 32; do
  "$bin/beam-run" bench serve http://127.0.0.1:8078 --requests $((clients * 8)) --concurrency $clients --input-tokens 128 --output-tokens 64
done
[ -z "${SANITIZE:-}" ] || bash benches/sanitize.sh "$bin/beam-run" selftest "$out/ranks" --model $model --executor cuda --rank-of tp=2
