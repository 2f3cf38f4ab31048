"""Settings before the first use of a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.paths import REPOSITORY
from trainer.distributed.devices import configure_allocator

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "expandable_segments:True"), ("backend:native", "backend:native")]
)
def test_gpu_segments_grow_unless_the_environment_says_otherwise(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", given or "")
    if given is None:
        monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    configure_allocator("cuda")
    assert os.environ["PYTORCH_ALLOC_CONF"] == expected


FIRST_USE_OF_CUDA = """
import os, sys, torch

def report(*_):
    settings = os.environ.get("PYTORCH_ALLOC_CONF")
    if torch.version.cuda:  # what the allocator itself has read, once and for all
        settings = f"expandable_segments:{torch.cuda.memory._snapshot()['allocator_settings']['expandable_segments']}"
    print(settings, flush=True)
    os._exit(0)

torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda._lazy_init = torch.cuda.init = report
from trainer.train import main
main(["--device", "cuda", "--out", sys.argv[1]])
"""


def test_allocator_is_configured_before_cuda_starts(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    command = [sys.executable, "-c", FIRST_USE_OF_CUDA, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "expandable_segments:True", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_process_that_trains_has_expandable_segments() -> None:
    code = (
        "import torch; from trainer.distributed.devices import select_device; select_device('cuda', 1);"
        "torch.zeros(1, device='cuda');"
        "print(torch.cuda.memory._snapshot()['allocator_settings']['expandable_segments'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
