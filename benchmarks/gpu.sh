#!/usr/bin/env bash
# Measure everything that needs a GPU and compare it with what is expected. Parts that are done are not repeated, so run
# it again until the table is whole.
#
#   benchmarks/gpu.sh                     on the first GPU, for at most 560 seconds
#   benchmarks/gpu.sh --smoke             the same parts on a CPU, at a small size: does every part start?
#   benchmarks/gpu.sh --list              parts, their seconds and what is expected
#
# WHEELS names a folder of wheels to install first into a folder of their own, for a machine that cannot download:
#   pip download --only-binary=:all: --no-deps --python-version 3.12 --platform manylinux_2_28_x86_64 \
#     --platform manylinux2014_x86_64 --dest WHEELS $(benchmarks/gpu.sh --wheels)
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
if [ -n "${WHEELS:-}" ]; then
  target=${TMPDIR:-/tmp}/gpu-wheels
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$target" "$WHEELS"/*.whl
  export PYTHONPATH=$target${PYTHONPATH:+:$PYTHONPATH}
fi
exec "$PYTHON" -m benchmarks.gpu "$@"
