"""Draw the configurations of a search with optuna, and keep them and their results in a journal.

Draw number n depends on the sweep's seed and n only, so that an interrupted sweep draws the rest as it would have.
Other programs that read optuna's studies can read the journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import RandomSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from trainer.trials.sweep_space import Choice, Options, Range, SweepSpace

STUDY = "sweep"
MAX_SEED = 2**32


def build_distribution(domain: Choice | Range) -> BaseDistribution:
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain.low, int) and isinstance(domain.high, int):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def round_value(value: Any) -> Any:
    """Return a drawn number with four digits, which are easier to compare."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Draws:
    """The configurations of one sweep."""

    def __init__(self, space: SweepSpace, journal: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        self.distributions = {name: build_distribution(domain) for name, domain in space.space.items()}
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))), study_name=STUDY, load_if_exists=True
        )

    def draw(self) -> list[Options]:
        """Return all configurations of the search; draw those that the journal does not have."""
        while len(complete := self.list_complete()) < self.space.trials:
            self.study.sampler = RandomSampler(seed=(self.space.seed * 1_000_003 + len(complete)) % MAX_SEED)
            self.study.ask(self.distributions)
        return [
            {name: round_value(value) for name, value in trial.params.items()}
            for trial in complete[: self.space.trials]
        ]

    def list_complete(self) -> list[FrozenTrial]:
        """Return the draws that have all options, in order: an interruption may have left one half written."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if set(trial.params) == set(self.distributions)]

    def save_result(self, number: int, loss: float | None) -> None:
        """Store the mean loss of a draw at the largest budget that it reached, None if its training failed."""
        trial = self.list_complete()[number]
        if trial.state == TrialState.RUNNING:
            state = TrialState.FAIL if loss is None else TrialState.COMPLETE
            self.study.tell(trial.number, loss, state=state)
