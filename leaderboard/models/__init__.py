"""The public record: seasons, tracks, entries, their runs, the curves and the scores."""

from leaderboard.models.curves import CurvePoint, Sample, Score
from leaderboard.models.effects import Effect
from leaderboard.models.entries import Entry
from leaderboard.models.github import Delivery, Installation, PullRequest
from leaderboard.models.nights import Night
from leaderboard.models.replays import Replay
from leaderboard.models.runs import Run
from leaderboard.models.seasons import Season, Track
from leaderboard.models.tokens import ApiToken

__all__ = [
    "ApiToken",
    "CurvePoint",
    "Delivery",
    "Effect",
    "Entry",
    "Installation",
    "Night",
    "PullRequest",
    "Replay",
    "Run",
    "Sample",
    "Score",
    "Season",
    "Track",
]
