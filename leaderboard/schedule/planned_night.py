"""The next nightly run of a track before it exists: its jobs, and the nodes that could take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from leaderboard import run_jobs
from leaderboard.models import Entry, Run, Track
from scheduler import job_groups, matching
from scheduler.estimates import SlotSchedule
from scheduler.matching import JobGroup
from scheduler.models import Blob, Job


@dataclass(frozen=True)
class PlannedNight:
    track: Track
    now: datetime
    due_at: datetime | None
    """None if the schedule is disabled."""
    slots: Sequence[SlotSchedule]
    """Slots of all nodes that are online (`estimates.QueueEstimates.slots`)."""

    @cached_property
    def run(self) -> Run:
        """The run, not saved."""
        entry = Entry(kind=Entry.Kind.MAIN, track=self.track)
        fields = {"track": self.track, "season": self.track.season, "budget": self.track.budget}
        return Run(entry=entry, purpose=Run.Purpose.NIGHTLY, job=Job(release=Blob()), **fields)

    @cached_property
    def training(self) -> JobGroup:
        return job_groups.build_group_from_job(Job(**run_jobs.build_train_job(self.run, Blob())))

    @cached_property
    def score_job(self) -> Job:
        """The job, not saved."""
        return Job(**run_jobs.build_score_job(self.run, self.track.suite))

    @cached_property
    def scoring(self) -> JobGroup:
        return job_groups.build_group_from_job(self.score_job)

    @cached_property
    def trainers(self) -> list[SlotSchedule]:
        """Slots that fit the training job."""
        return self.find_fitting(self.training)

    def find_fitting(self, group: JobGroup) -> list[SlotSchedule]:
        return [slot for slot in self.slots if matching.find_obstacle(group, slot.node_slot) is None]

    def count_nodes(self) -> int:
        """Return the number of online nodes that fit the training job."""
        return len({slot.node_slot.node for slot in self.trainers})

    def describe_obstacles(self, group: JobGroup) -> str:
        """Return what the online nodes lack, as the rest of a sentence ("needs a node ...")."""
        found = {matching.find_obstacle(group, slot.node_slot) for slot in self.slots}
        return "; or one ".join(sorted(obstacle for obstacle in found if obstacle))
