#!/usr/bin/env bash
# Official clients against the served example model: builds a Python environment and the programs, compiles the model for
# the CPU, serves it on a free port and runs the checks. Arguments go to pytest, such as `-k tools`.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_TERM_COLOR=never
target="${CARGO_TARGET_DIR:-target}"
work="$target/clients"
mkdir -p "$work"
cargo build --release --quiet -p beamc -p beam-run
rm -rf "$work/artifact"
"$target/release/beamc" compile examples/beam-nano --target cpu -o "$work/artifact"
stamp="$work/venv/requirements.txt"
if ! cmp -s tests/clients/requirements.txt "$stamp"; then
    rm -rf "$work/venv"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$stamp"
fi
export BEAM_RUN="$target/release/beam-run" BEAM_ARTIFACT="$work/artifact" BEAM_MODEL=examples/beam-nano
exec "$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/clients/checks "$@"
