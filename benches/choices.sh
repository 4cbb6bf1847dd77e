#!/usr/bin/env bash
# Tokens chosen on a CUDA device. BIN holds beamc and beam-run, OUT gets files; artifacts that OUT holds already are taken as they are. Vocabularies of 200,064
# and 262,144 tokens against the host's sampler, the kernels' times at 200,064 logits a row, and over HTTP what the device draws against what the host does.
set -euo pipefail
bin=$1 out=$2
cd "$(dirname "$0")/.."
mkdir -p "$out"
model=examples/beam-nano
[ -d "$out/device" ] || "$bin/beamc" compile model-spec/beam-nano.toml --target h200-bf16 -o "$out/device"
for vocab in 200064 262144; do
  [ -d "$out/vocab-$vocab" ] && continue
  printf 'extends = "beam-nano"\n[model]\nname = "beam-nano-%s"\n[dims]\nlayers = 2\nvocab = %s\n' $vocab $vocab > "$out/$vocab.toml"
  "$bin/beamc" compile "$out/$vocab.toml" --target h200-bf16 -o "$out/vocab-$vocab"
done
for vocab in 200064 262144; do "$bin/beam-run" selftest "$out/vocab-$vocab" --synthetic 7 --on-device; done
python3 benches/choices.py "$out/vocab-200064" "$out/choices.json"

python3 benches/compare.py tokens $model/eval/validation.safetensors "$out/tokens.json"
python3 benches/compare.py prompts "$out/tokens.json" "$out/prompts.json"
python3 benches/compare.py without_choice "$out/device" "$out/host"
servers=()
trap 'kill "${servers[@]}"' EXIT
for at in device:8087 host:8088; do
  "$bin/beam-run" serve "$out/${at%:*}" --model $model --executor cuda --port "${at#*:}" > "$out/serve-${at%:*}.log" 2>&1 &
  servers+=($!)
  for _ in $(seq 100); do curl -sf "http://127.0.0.1:${at#*:}/health" > /dev/null && break; sleep 0.2; done
done
python3 benches/compare.py sampled http://127.0.0.1:8087 http://127.0.0.1:8088 "$out/prompts.json"
