#!/usr/bin/env bash
# Runs a command under each checker of compute-sanitizer, SANITIZE seconds at most. What a checker finds, or a command that fails, fails here; running
# out of time does not, and is told.
set -uo pipefail
for tool in memcheck synccheck racecheck; do
  echo "== $tool, $SANITIZE s at most"
  timeout "$SANITIZE" compute-sanitizer --error-exitcode 9 --tool $tool "$@" | tail -4
  code=${PIPESTATUS[0]}
  case $code in
    0) ;;
    124) echo "stopped after $SANITIZE s" ;;
    *) exit "$code" ;;
  esac
done
