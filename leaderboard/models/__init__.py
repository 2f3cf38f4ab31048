"""The public record: seasons, tracks, entries, their runs, the curves and the scores."""

from leaderboard.models.approval_limits import ApprovalLimits
from leaderboard.models.confirmations import Confirmation
from leaderboard.models.curves import CurvePoint, Sample, Score
from leaderboard.models.entries import Entry
from leaderboard.models.generations import Generation
from leaderboard.models.github import GitHubRepository, Installation, PullRequest
from leaderboard.models.graphs import TracedGraph
from leaderboard.models.hours import TrackHours
from leaderboard.models.nights import Month, Night
from leaderboard.models.notebooks import NotebookPart
from leaderboard.models.outbox import OutboxMessage
from leaderboard.models.publications import Publication
from leaderboard.models.replays import Replay
from leaderboard.models.rulings import Ruling
from leaderboard.models.runs import Run
from leaderboard.models.seasons import Season, SeasonFile
from leaderboard.models.standings import Standing, StandingsTable
from leaderboard.models.subscriptions import Subscription
from leaderboard.models.swarms import Seat, Swarm, SwarmEvent
from leaderboard.models.tokens import ApiToken
from leaderboard.models.tracks import Track

__all__ = [
    "ApiToken",
    "ApprovalLimits",
    "Confirmation",
    "CurvePoint",
    "Entry",
    "Generation",
    "GitHubRepository",
    "Installation",
    "Month",
    "Night",
    "NotebookPart",
    "OutboxMessage",
    "Publication",
    "PullRequest",
    "Replay",
    "Ruling",
    "Run",
    "Sample",
    "Score",
    "Season",
    "SeasonFile",
    "Seat",
    "Standing",
    "StandingsTable",
    "Subscription",
    "Swarm",
    "SwarmEvent",
    "TracedGraph",
    "Track",
    "TrackHours",
]
