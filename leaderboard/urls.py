"""The pages. Their addresses are fixed: they are quoted in papers and pull requests."""

from __future__ import annotations

from django.urls import path

from leaderboard.views import board, entries, pool, runs

urlpatterns = [
    path("", board.board, name="board"),
    path("tracks/<slug:slug>/", board.track, name="track"),
    path("tracks/<slug:slug>/live.json", board.track_live, name="track-live"),
    path("tracks/<slug:slug>/results.json", board.track_results, name="track-results"),
    path("entries/<int:entry_id>/", entries.entry, name="entry"),
    path("entries/<int:entry_id>/results.json", entries.entry_results, name="entry-results"),
    path("runs/<int:run_id>/", runs.run, name="run"),
    path("runs/<int:run_id>/live.json", runs.run_live, name="run-live"),
    path("runs/<int:run_id>/ask/<slug:wish>/", runs.run_ask, name="run-ask"),
    path("queue/", pool.queue, name="queue"),
    path("queue/live.json", pool.queue_live, name="queue-live"),
    path("nodes/", pool.nodes, name="nodes"),
    path("nodes/live.json", pool.nodes_live, name="nodes-live"),
]
