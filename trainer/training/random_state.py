"""Seed the global random number generators."""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the random numbers of a process's step, such as those of dropout.

    So no state has to be saved: a run resumes exactly on any number of GPUs, and no two processes draw the same.
    """
    seed_everything(int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]))
