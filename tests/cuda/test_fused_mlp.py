"""The MLP's Triton kernels equal their formulas, in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.paths import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: `make test-cuda` installs it"),
]
ROWS, COLUMNS, INNER = 256, 512, 128
SCRIPT = f"""
import json, sys, torch
from trainer.ops import triton_mlp as mlp

torch.manual_seed(0)
rows, columns, inner = {ROWS}, {COLUMNS}, {INNER}
draw = lambda *shape: torch.randint(-3, 4, shape).to(torch.float32)  # whole numbers: sums are exact in any order
x, up, gradient, down = draw(rows, inner), draw(columns, inner), draw(rows, inner), draw(inner, columns)
positive, squared, result = (torch.full((rows, columns), torch.nan) for _ in range(3))
grid = mlp.count_blocks(rows, columns)
sizes = (rows, columns, inner)
mlp.squared_relu_product_kernel[grid](x, up, positive, squared, *sizes, **mlp.BLOCKS)
mlp.squared_relu_gradient_kernel[grid](gradient, down, positive, result, *sizes, **mlp.BLOCKS)
hidden = (x @ up.T).requires_grad_()
wanted = hidden.relu().square()
wanted.backward(gradient @ down)
pairs = {{"positive": (positive, hidden.relu()), "squared": (squared, wanted), "gradient": (result, hidden.grad)}}
json.dump({{name: float((found - right).abs().max()) for name, (found, right) in pairs.items()}}, sys.stdout)
"""


def test_kernels_differ_by_nothing_from_the_formula_in_fp32() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == {"positive": 0.0, "squared": 0.0, "gradient": 0.0}
