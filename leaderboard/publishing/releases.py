"""Milestones: weights in bf16 at every `Track.milestones` percent of a run's budget; and releases of a long run.

A milestone is kept for downloads and as the start of other runs; those of runs that do not rank are deleted. Those at a
multiple of `Track.releases` are releases: they are published and scored, and stay. The final weights are the last
release. The percentage is the training's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from leaderboard import run_jobs
from leaderboard.models import CurvePoint, Publication, Run
from leaderboard.models.publications import FINAL
from leaderboard.publishing import publications
from leaderboard.publishing.weights import is_downloadable
from scheduler.models import Blob
from scheduler.retention import CHECKPOINT_DAYS
from trainer import protocol
from trainer.accounting.budget import Budget


@dataclass(frozen=True)
class Milestone:
    """A release step of a run, for its page."""

    percent: int
    publication: Publication | None
    """None: not reached, or not received."""
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
    def reached(self) -> list[Milestone]:
        return [mark for mark in self.milestones if mark.publication or mark.percent <= self.percent]

    @property
    def next(self) -> Milestone | None:
        """Return the next step."""
        left = (mark for mark in self.milestones if mark.publication is None and mark.percent > self.percent)
        return next(left, None)


def keep_milestone(run: Run, milestone: protocol.Checkpoint, blobs: Sequence[Blob]) -> Publication | None:
    """Keep the weights of a milestone that the track has, once; publish a release. Requires a transaction."""
    percent, every = milestone.milestone or 0, run_jobs.get_milestone_percent(run)
    if not every or percent % every:
        return None
    manifest = milestone.model_dump(mode="json", exclude_none=True)
    hashes = {file.sha256 for file in milestone.files if is_downloadable(PurePosixPath(file.path).name)}
    files = [blob for blob in blobs if blob.sha256 in hashes]
    reason = f"{percent} % of the budget."
    is_release = bool(run.track.releases) and percent % run.track.releases == 0
    publication = publications.keep_weights(run, manifest, files, f"{percent}-percent", reason, is_release=is_release)
    if publication.is_release:
        publications.enqueue_upload(publication)
    return publication


def publish_last_releases() -> list[Publication]:
    """Publish the final weights of finished runs on tracks with releases, but not the ladder's. Idempotent."""
    ours = Run.objects.filter(track__releases__gt=0, state=Run.State.FINISHED).exclude(purpose=Run.Purpose.LADDER)
    finished = ours.select_related("track", "checkpoint").exclude(checkpoint=None).exclude(publications__name=FINAL)
    return [publications.publish_run(run, "The last release: all of its budget.") for run in finished]


def delete_old_milestones(now: datetime) -> int:
    """Delete the milestones of runs that do not rank, days after their end; return how many. Releases stay."""
    before = now - timedelta(days=CHECKPOINT_DAYS)
    ended = Run.objects.without_rank().filter(finished_at__lt=before)
    old = Publication.objects.filter(run__in=ended.values("pk"), is_release=False, published_at=None)
    return old.exclude(name=FINAL).delete()[1].get(Publication._meta.label, 0)


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
