"""Earlier runs that a run continues, each up to the checkpoint at which the next one started, as one curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from typing_extensions import TypedDict

from leaderboard.charts.curve_svg import ABSCISSAE, Curve, Point
from leaderboard.charts.panels import Shown
from leaderboard.formatting import compact
from leaderboard.models import CurvePoint, Run

MAX_LENGTH = 16
NOTHING = Point(step=0, tokens=0, flops=0.0, seconds=0.0, loss=0.0)


class StageDict(TypedDict):
    run: int
    step: int
    tokens: int
    went_on_to: int
    """Its last step."""
    versions: tuple[str, str] | None
    """Versions of the architecture before and after a conversion of its weights."""
    page: str


@dataclass(frozen=True)
class Stage:
    """An earlier run."""

    run: Run
    left: Point
    """Start of the next run, counted from the start of this run."""
    since: Point
    """Start of this run, counted from the start of the oldest run."""
    versions: tuple[str, str] | None

    @property
    def steps_back(self) -> int:
        return max(self.run.step - self.left.step, 0)

    def to_dict(self) -> StageDict:
        return {
            "run": self.run.pk,
            "step": self.left.step,
            "tokens": self.left.tokens,
            "went_on_to": self.run.step,
            "versions": self.versions,
            "page": self.run.get_absolute_url(),
        }

    def __str__(self) -> str:
        back = f", {self.steps_back:,} steps before its last" if self.steps_back else ", its last"
        made = " The weights of version {} were made into those of {}.".format(*self.versions) if self.versions else ""
        return f"step {self.left.step:,}{back}, after {compact(self.left.tokens)} tokens.{made}"


def list_stages(run: Run) -> list[Stage]:
    """Return the earlier runs, oldest first. Two queries for each."""
    chain = [run]
    while chain[0].start_run_id is not None and len(chain) <= MAX_LENGTH:
        before = Run.objects.select_related("entry", "track", "checkpoint").get(pk=chain[0].start_run_id)
        chain.insert(0, before)
    stages: list[Stage] = []
    for before, after in pairwise(chain):
        since = find_end(stages)
        stages.append(Stage(before, find_branch_point(before, after), since, parse_versions(after.config)))
    return stages


def find_end(stages: Sequence[Stage]) -> Point:
    """Return where the run after these begins, counted from the first one's beginning."""
    return add_offset(stages[-1].left, stages[-1].since) if stages else NOTHING


def find_branch_point(before: Run, after: Run) -> Point:
    checkpoint = after.start_checkpoint or before.checkpoint
    step = checkpoint.step if checkpoint else before.step
    rows = CurvePoint.objects.filter(run=before, series=CurvePoint.Series.TRAIN, step__lte=step).order_by("-step")
    values = rows.values_list(*Point._fields).first()
    return Point(*values)._replace(step=step) if values else NOTHING._replace(step=step)


def parse_versions(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the architecture's versions before and after, as the node reported them (`from` in `run.json`)."""
    start = config.get("from")
    pair = start.get("versions") if isinstance(start, dict) else None
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, int | float) for each in pair):
        return None
    return f"{pair[0]:g}"[:8], f"{pair[1]:g}"[:8]


# --- as one curve -----------------------------------------------------------------------------------------------------


def add_offset(point: Point, by: Point) -> Point:
    return point._replace(**{name: getattr(point, name) + getattr(by, name) for name in ABSCISSAE})


def shift_curve(curve: Curve, by: Point) -> Curve:
    if by is NOTHING:
        return curve
    return Curve(
        [add_offset(point, by) for point in curve.train], curve.smooth, [add_offset(point, by) for point in curve.dev]
    )


def select_points(curve: Curve, kept: Sequence[int]) -> Curve:
    return Curve([curve.train[i] for i in kept], [curve.smooth[i] for i in kept], [])


def build_branches(stages: Sequence[Stage], curves: Mapping[int, Curve]) -> Iterator[Shown]:
    """Yield for each earlier run what was continued, what was left behind, and the step back from its end."""
    for stage in stages:
        curve = shift_curve(curves[stage.run.pk], stage.since)
        at = stage.left.step + stage.since.step
        kept = [i for i, point in enumerate(curve.train) if point.step <= at]
        left = [i for i, point in enumerate(curve.train) if point.step > at]
        name = f"run {stage.run.pk}"
        if kept:
            yield Shown(stage.run, select_points(curve, kept), name, "before", is_past=True)
        if kept and left:
            yield Shown(
                stage.run, select_points(curve, [kept[-1], *left]), f"{name}, left behind", "left", is_past=True
            )
            yield Shown(stage.run, build_step_back(curve, kept[-1], left[-1]), "step back", "back", is_past=True)


def build_step_back(curve: Curve, to: int, end: int) -> Curve:
    """Return the line from the end of a branch to the point where the next one leaves it."""
    ends = [(curve.train[i], curve.smooth[i]) for i in (to, end)]
    bare = [NOTHING._replace(**{name: getattr(p, name) for name in ABSCISSAE}, loss=loss) for p, loss in ends]
    return Curve(bare, [loss for _, loss in ends], [])
