"""The public record: seasons, tracks, entries, their runs, the curves and the scores."""

from leaderboard.models.curves import CurvePoint, Sample, Score
from leaderboard.models.entries import Entry
from leaderboard.models.nights import Night
from leaderboard.models.replays import Replay
from leaderboard.models.runs import Run
from leaderboard.models.seasons import Season, Track
from leaderboard.models.tokens import ApiToken

__all__ = ["ApiToken", "CurvePoint", "Entry", "Night", "Replay", "Run", "Sample", "Score", "Season", "Track"]
