#!/usr/bin/env bash
# The example model on a CUDA device against the cpu executor. BIN holds beamc and beam-run, OUT gets files.
# Artifacts that OUT holds already are taken as they are. With SANITIZE=seconds each checker gets that long.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
model=examples/beam-nano
[ -d "$out/device" ] || "$bin/beamc" compile model-spec/beam-nano.toml --target h200-bf16 -o "$out/device"
[ -d "$out/cpu" ] || "$bin/beamc" compile model-spec/beam-nano.toml --target cpu -o "$out/cpu"
"$bin/beam-run" doctor
"$bin/beam-run" selftest "$out/device" --model $model
python3 benches/compare.py tokens $model/eval/validation.safetensors "$out/tokens.json"
"$bin/beam-run" score "$out/cpu" --model $model --tokens "$out/tokens.json" --out "$out/cpu.safetensors" > /dev/null
"$bin/beam-run" score "$out/device" --model $model --executor cuda --tokens "$out/tokens.json" --out "$out/device.safetensors" > /dev/null
python3 benches/compare.py logits "$out/cpu.safetensors" "$out/device.safetensors"
python3 benches/compare.py prompts "$out/tokens.json" "$out/prompts.json"
for of in cpu device; do
  executor=cpu; [ $of = device ] && executor=cuda
  "$bin/beam-run" generate "$out/$of" --model $model --executor $executor --tokens "$out/prompts.json" --max-tokens 48 > "$out/$of.json"
done
python3 benches/compare.py answers "$out/cpu.json" "$out/device.json"
"$bin/beam-run" bench model "$out/device" --model $model --executor cuda

"$bin/beam-run" serve "$out/device" --model $model --executor cuda --port 8077 > "$out/serve.log" 2>&1 &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do curl -sf http://127.0.0.1:8077/health > /dev/null && break; sleep 0.2; done
python3 benches/compare.py served http://127.0.0.1:8077 "$out/prompts.json" "$out/device.json"
for clients in 1 8 32; do
  "$bin/beam-run" bench serve http://127.0.0.1:8077 --requests $((clients * 8)) --concurrency $clients --input-tokens 128 --output-tokens 64
done

[ -z "${SANITIZE:-}" ] || bash benches/sanitize.sh "$bin/beam-run" selftest "$out/device" --model $model --quick
