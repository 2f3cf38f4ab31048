"""The report of a rehearsal: board rows, scores, the record and the folder of the logs."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from rich.console import Console
from rich.table import Table

from dailytrain.rehearsal.scaled_tracks import SUITE_LIMIT
from dailytrain.rehearsal.steps import write_log
from leaderboard.models import Confirmation, Run, Score, Standing, Track
from leaderboard.rankings.explanations import format_interval, format_multiplier
from leaderboard.rankings.standings_store import load_standings
from leaderboard.schedule import ladder
from trainer.scoring.benchmark_tasks import CORE_SAMPLE
from trainer.scoring.core_tasks import CENTERED, CORE_SAMPLE_TASKS

COLUMNS = ("entry", "bits per byte", "multiplier", "95 % interval", "runs", "trust")


def print_report(console: Console, tracks: list[Track]) -> None:
    for track in tracks:
        console.print(build_board(track))
        for line in describe_record(track):
            console.print(f"  {line}")


def build_board(track: Track) -> Table:
    table = Table(*COLUMNS, title=f"{track.name} at a small scale: {track.budget}")
    for row in load_standings(track).rows.select_related("entry"):
        table.add_row(*format_row(row))
    return table


def format_row(row: Standing) -> tuple[str, ...]:
    name = f"{row.entry.title}{' (baseline)' if row.is_baseline else ''}"
    multiplier = "" if row.is_baseline else format_multiplier(row.estimate)
    interval = "" if row.is_baseline else format_interval(row.estimate)
    return name, f"{row.bits_per_byte:.4f}", multiplier, interval, str(row.run_count), row.trust


def describe_record(track: Track) -> list[str]:
    """Return the state of the ladder, the decision about the entry, and the scores of its newest run."""
    progress = ladder.get_ladder_progress(Track.objects.select_related("season").get(pk=track.pk))
    lines = [f"Ladder: {progress.done} of {progress.wanted} runs are scored."] if progress.wanted else []
    lines += [
        f"{decision.entry.title}: {decision.get_outcome_display()}"
        for decision in Confirmation.objects.filter(entry__track=track).select_related("entry")
    ]
    run = Run.objects.on_board(track).order_by("-pk").first()
    if run is not None:
        scores = {score.name: score for score in run.scores.order_by("name")}
        lines.append(f"Run {run.pk}: {', '.join(f'{name} {score.value:.4f}' for name, score in scores.items())}")
        if centered := scores.get(f"{CORE_SAMPLE}/{CENTERED}"):
            lines.append(describe_core_style_score(centered))
    return lines


def describe_core_style_score(score: Score) -> str:
    names = ", ".join(task.name for task in CORE_SAMPLE_TASKS)
    return (
        f"CORE-style score: {score.value:.4f} ± {score.stderr or 0:.4f}, the mean of centered accuracies in {names} "
        f"({SUITE_LIMIT} questions each; 0 is chance)"
    )


def write_logs(console: Console) -> None:
    """Write the logs of all runs beside those of the processes and print the folder."""
    for run in Run.objects.exclude(job=None):
        write_log(run)
    console.print(f"  Logs of all processes and runs: {Path(settings.HOME) / 'log'}")
