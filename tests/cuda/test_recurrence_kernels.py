"""The recurrence's Triton kernels equal their form in torch, values and gradients, in Triton's interpreter."""

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
SCRIPT = """
import json, sys, torch
from trainer.ops import recurrence, triton_recurrence

torch.library.wrap_triton = lambda kernel: kernel  # torch refuses kernels of the interpreter
length, middle = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
shapes = [*[(2, 3, length, 64)] * 3, (3, 64), (3, 64), (2, 3, 64, 64)]
inputs = [torch.randn(shape) for shape in shapes]
spread = torch.linspace(-30, 30, 192).view(3, 64) if middle > 9 else inputs[3]
inputs[3] = (spread + middle).exp()
directions = torch.randn(shapes[2]), torch.randn(shapes[5])
errors = {}

def compute(form, dtype):
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    results = form(*leaves)
    loss = sum((result * direction.to(dtype)).sum() for result, direction in zip(results, directions))
    return [*results, *torch.autograd.grad(loss, leaves)]

wanted = compute(recurrence.chunked_recurrence, torch.float64)
names = ("output", "state", "r", "k", "v", "rate", "bonus", "first state")
for form in (triton_recurrence.RecurrenceFunction.apply, recurrence.chunked_recurrence):
    found = compute(form, torch.float32)
    assert all(tensor.isfinite().all() for tensor in found)
    errors[form.__name__] = {
        name: float((a.double() - b).norm() / b.norm()) for name, a, b in zip(names, found, wanted, strict=True)
    }
json.dump(errors, sys.stdout)
"""


@pytest.mark.parametrize(
    ("length", "rate"), [(150, -3.0), (64, 0.0), (2, 1.0), (130, 10.0)], ids=["slow", "one chunk", "short", "extreme"]
)
def test_recurrence_kernels_equal_chunked_form_within_fp32(length: int, rate: float) -> None:
    """`rate`: the middle of the logarithms of rates; with 10 they go from -20 to 40."""
    command = [sys.executable, "-c", SCRIPT, str(length), str(rate)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "GOMP_SPINCOUNT": "1000"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    kernels, reference = json.loads(done.stdout).values()
    for name, error in kernels.items():
        assert error <= max(1e-5, 2 * reference[name]), name
