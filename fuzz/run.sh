#!/bin/sh
# Builds and runs one fuzz target with the stable compiler:  fuzz/run.sh TARGET [SECONDS]
# The coverage that libFuzzer steers by comes from an LLVM pass that stable rustc can run; cargo-fuzz and a nightly
# toolchain are not needed, only a C++ compiler for libFuzzer itself.
set -eu
cd "$(dirname "$0")"
target=$1
seconds=${2:-600}
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares"
# One codegen unit a crate keeps counters and their tables in one section; naming the host as target keeps the flags away from build scripts.
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 $coverage" cargo build --release --quiet --target "$host" --bin "$target"
mkdir -p "corpus/$target" "artifacts/$target"
exec "${CARGO_TARGET_DIR:-target}/$host/release/$target" "corpus/$target" "seeds/$target" \
  -max_total_time="$seconds" -artifact_prefix="artifacts/$target/" -dict="seeds/$target.dict" \
  -rss_limit_mb=4096 -timeout=10 -max_len=65536 -print_final_stats=1
