"""Imported by each Python process whose PYTHONPATH has this folder: lets its training fail as $INJECTED_FAULT says."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

FAULT = os.environ.get("INJECTED_FAULT", "")
FIRST_STEP = 3
"""The self-test of a node makes one step, so it passes."""


def break_steps(train_step: Callable[..., Any]) -> Callable[..., Any]:
    steps = []

    def call(*arguments: Any, **options: Any) -> Any:
        steps.append(1)
        if len(steps) >= FIRST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_step(*arguments, **options)

    return call


class LoopFinder:
    """Wraps `train_step` when the training loop is imported; reports the package that is to be missing as missing."""

    is_wrapping = False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if FAULT == "missing package" and name == "packaging":
            raise ModuleNotFoundError("No module named 'packaging'", name=name)
        if name != "trainer.training.loop" or self.is_wrapping:
            return None
        self.is_wrapping = True
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_break(module: ModuleType) -> None:
            execute(module)
            module.train_step = break_steps(module.train_step)  # type: ignore[attr-defined]

        spec.loader.exec_module = execute_and_break  # type: ignore[method-assign]
        return spec


if FAULT:
    sys.meta_path.insert(0, LoopFinder())  # type: ignore[arg-type]
