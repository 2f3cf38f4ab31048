#!/usr/bin/env bash
# Everything that wants a GPU, within nine minutes, with one table at the end. Each part writes $OUT/PART.json and
# $OUT/PART.log; a part that fails, or whose time is over, does not stop the others.
#
#   benchmarks/gpu.sh            on the first GPU
#   benchmarks/gpu.sh --smoke    the same parts on a CPU, in small: is everything in place?
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-benchmarks/out}
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
mkdir -p "$OUT"
rm -f "$OUT"/*.json "$OUT"/*.log "$OUT/parts.tsv"

if [ "${1:-}" = --smoke ]; then
  device=cpu
  small=(--device cpu --threads 1 --shape 2x32 --sequence-length 16 --batch 2 --vocabulary-size 300 --repeats 2)
  plain=("${small[@]}" --only gpt,torch)
  longer=("${small[@]}" --only gpt)
  shallow=(--preset tiny --steps 2 --device cpu) deep=("${shallow[@]}" --model.depth 3)
  corpus=(--tokenizer bpe:512 --limit-bytes 1MiB)
  numbers=(--smoke)
else
  device=cuda
  plain=(--device cuda --compile --seconds 120)
  longer=(--device cuda --compiled-only --only nanogpt,gpt,litgpt --sequence-length 2048 --batch 16 --seconds 60)
  # The night's shape, with fewer rows in a step: what a step costs does not depend on how many there are.
  deep=(--preset daily-h100 --train.batch 32 --steps 6)
  shallow=("${deep[@]}" --model.depth 12)
  corpus=(--tokenizer bpe:32768 --limit-bytes 16MiB)
  numbers=()
fi
corpus+=(--corpus python-library)

END=$((SECONDS + 530))
part() { # NAME SECONDS COMMAND...: standard output is the part's JSON
  local name=$1 most=$2 left=$((END - SECONDS)) began=$SECONDS
  shift 2
  echo "$name ..." >&2
  if [ "$left" -lt 5 ]; then
    printf '%s\tno time left\t0\n' "$name" >>"$OUT/parts.tsv"
    return
  fi
  timeout --kill-after=5 "$((most < left ? most : left))" "$@" >"$OUT/$name.json" 2>"$OUT/$name.log" </dev/null
  printf '%s\t%s\t%s\n' "$name" "$?" "$((SECONDS - began))" >>"$OUT/parts.tsv"
}

cli=("$PYTHON" -m trainer.cli)
part bench-1024 150 "${cli[@]}" bench --json "${plain[@]}"
part bench-2048 90 "${cli[@]}" bench --json "${longer[@]}"
part prepare 60 "${cli[@]}" prepare "${corpus[@]}"
part depth-12 80 "${cli[@]}" profile --json "${shallow[@]}" "${corpus[@]}" --out "$OUT/depth-12"
part depth-24 100 "${cli[@]}" profile --json "${deep[@]}" "${corpus[@]}" --out "$OUT/depth-24"
part tests 80 "$PYTHON" -m pytest -q -m gpu tests/trainer
part loss 30 "$PYTHON" -m benchmarks.loss --device "$device" ${numbers[@]+"${numbers[@]}"}
part optimizers 40 "$PYTHON" -m benchmarks.optimizers --device "$device" ${numbers[@]+"${numbers[@]}"}
"$PYTHON" -m benchmarks.table "$OUT"
