"""Tune a contender's factors by its loss on dev: the same number of trials in the same space for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from benchmarks.contenders.base import Factors

SPACE = {
    "matrices": FloatDistribution(0.3, 3.0, log=True),
    "embeddings": FloatDistribution(0.3, 3.0, log=True),
    "scalars": FloatDistribution(0.03, 3.0, log=True),
    "smear": FloatDistribution(0.01, 3.0, log=True),
    "decay": FloatDistribution(0.003, 3.0, log=True),
    "warmup": FloatDistribution(0.005, 0.3, log=True),
}
SECOND = Factors(matrices=1.0, embeddings=1.0, scalars=0.1, smear=0.1, decay=0.03, warmup=0.05)
"""The second trial of every contender; the first is its own default."""
RANDOM_TRIALS = 4


def tune_factors(defaults: Factors, trials: int, compute_loss: Callable[[Factors], float | None]) -> Factors:
    """Return the best of `trials` settings. Trial n depends on n and the losses before it only."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=TPESampler(seed=0))
    study.enqueue_trial({name: getattr(SECOND, name) for name in SPACE})
    tried: list[tuple[float, Factors]] = []
    for number in range(trials):
        if number == 0:
            tried.append((replace_none(compute_loss(defaults)), defaults))
            continue
        study.sampler = TPESampler(seed=number, n_startup_trials=RANDOM_TRIALS)
        trial = study.ask(SPACE)
        factors = Factors(**{name: float(f"{trial.params[name]:.3g}") for name in SPACE})
        loss = compute_loss(factors)
        study.tell(trial, loss, state=TrialState.FAIL if loss is None else TrialState.COMPLETE)
        tried.append((replace_none(loss), factors))
    return min(tried, key=lambda pair: pair[0])[1]


def replace_none(loss: float | None) -> float:
    """Return infinity for a run that diverged."""
    return math.inf if loss is None else loss
