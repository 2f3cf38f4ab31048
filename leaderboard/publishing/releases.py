"""Releases of a long run: weights that are published at each `Track.releases` percent of its budget.

The first checkpoint that has passed 10, 20, ... % becomes the release `10-percent`, `20-percent`, ...; of several marks
passed at once, the last one. The final weights are the last release. A checkpoint's percentage is extrapolated from the
run's own progress and their steps: exact for budgets in steps, tokens and FLOPs, approximate for one in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from django.db import transaction

from leaderboard.models import CurvePoint, Publication, Run
from leaderboard.models.publications import FINAL
from leaderboard.publishing import publications
from scheduler.models import Checkpoint
from trainer.accounting.budget import Budget


@dataclass(frozen=True)
class Milestone:
    """A release step of a run, for its page."""

    percent: int
    publication: Publication | None
    """None: not reached, or passed without a checkpoint."""
    loss: float | None
    """On dev text, at the last evaluation before it."""
    bits_per_byte: float | None
    """On held-out text, by a trusted node; None until it is scored."""
    hub: str
    """URL on the Hub; empty until it is published."""


@dataclass(frozen=True)
class ReleaseProgress:
    """The progress of a run."""

    percent: float
    tokens: int
    of_tokens: int
    seconds_left: float | None
    milestones: list[Milestone]

    @property
    def next(self) -> Milestone | None:
        """Return the next step."""
        left = (mark for mark in self.milestones if mark.publication is None and mark.percent > self.percent)
        return next(left, None)


def cut_releases() -> list[Publication]:
    """Create all due releases and return them. Idempotent."""
    ours = Run.objects.filter(track__releases__gt=0).select_related("track", "checkpoint")
    going = ours.filter(state__in=Run.LIVE).exclude(job=None)
    arrived = ours.filter(state=Run.State.FINISHED).exclude(checkpoint=None).exclude(publications__name=FINAL)
    found = [cut_release(run) for run in going]
    found += [publications.publish_run(run, "The last release: all of its budget.") for run in arrived]
    return [publication for publication in found if publication is not None]


@transaction.atomic
def cut_release(run: Run) -> Publication | None:
    """Release a run's newest checkpoint if it has passed a mark that none has passed before."""
    checkpoint = Checkpoint.objects.filter(job=run.job_id).order_by("-step").first()
    if checkpoint is None or not run.step:
        return None
    percent = get_passed_percent(run.fraction * checkpoint.step / run.step, run.track.releases)
    name = f"{percent}-percent"
    if not 0 < percent < 100 or run.publications.filter(name=name).exists():
        return None
    return publications.publish_release(run, checkpoint, name, f"{percent} % of the budget, at step {checkpoint.step}.")


def get_passed_percent(fraction: float, every: int) -> int:
    """Return the last mark, in percent, at or before a used fraction of the budget."""
    return math.floor(min(fraction, 1.0) * 100 / every + 1e-9) * every


def get_release_progress(run: Run) -> ReleaseProgress | None:
    """Return a run's progress and releases; None if its track has no releases."""
    every = run.track.releases
    if not every:
        return None
    publications_by_name = {publication.name: publication for publication in run.publications.all()}
    curve = CurvePoint.objects.filter(run=run, series=CurvePoint.Series.DEV).order_by("step")
    losses = list(curve.values_list("step", "loss")) if publications_by_name else []
    marks = []
    for percent in [*range(every, 100, every), 100]:
        found = publications_by_name.get(FINAL if percent == 100 else f"{percent}-percent")
        before = [loss for step, loss in losses if found and step <= found.step]
        hub = publications.get_hub_url(found) if found else ""
        bits = found.bits_per_byte if found else None
        marks.append(Milestone(percent, found, before[-1] if before else None, bits, hub))
    return ReleaseProgress(100 * run.fraction, run.tokens, estimate_total_tokens(run), run.seconds_left, marks)


def estimate_total_tokens(run: Run) -> int:
    """Return the tokens of the whole budget, extrapolated if it is not in tokens; 0: unknown."""
    budget = Budget.parse(run.budget)
    if budget.kind == "tokens":
        return int(budget.amount)
    return round(run.tokens / run.fraction) if run.fraction else 0
