#!/usr/bin/env bash
# The ten-minute run on one H100 or H200 and its curve: $OUT/metrics.jsonl.
#
#   DATASET=folder benchmarks/speedrun.sh               prepared before: `dailytrain prepare`
#   CORPUS='files:gutenberg/*.txt' benchmarks/speedrun.sh
#   BUDGET=480s ... where a command may not take longer; --smoke: seconds on a CPU
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-benchmarks/out/speedrun}
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
flags=(--preset speedrun-h100 --budget "${BUDGET:-10m}")
[ "${1:-}" != --smoke ] || flags=(--preset tiny --budget 10steps)
if [ -n "${DATASET:-}" ]; then flags+=(--dataset "$DATASET"); fi
if [ -n "${CORPUS:-}" ]; then flags+=(--corpus "$CORPUS"); fi
rm -rf "$OUT"
"$PYTHON" -m trainer.cli train "${flags[@]}" --out "$OUT"
"$PYTHON" -m benchmarks.curve "$OUT"
