"""The pages. Their addresses are fixed: they are quoted in papers and pull requests."""

from __future__ import annotations

from django.urls import path

from leaderboard import views

urlpatterns = [
    path("", views.board, name="board"),
    path("tracks/<slug:slug>/", views.track, name="track"),
    path("tracks/<slug:slug>/live.json", views.track_live, name="track-live"),
    path("tracks/<slug:slug>/results.json", views.track_results, name="track-results"),
    path("entries/<int:entry_id>/", views.entry, name="entry"),
    path("entries/<int:entry_id>/results.json", views.entry_results, name="entry-results"),
    path("runs/<int:run_id>/", views.run, name="run"),
    path("runs/<int:run_id>/live.json", views.run_live, name="run-live"),
    path("runs/<int:run_id>/ask/<slug:wish>/", views.run_ask, name="run-ask"),
    path("queue/", views.queue, name="queue"),
    path("queue/live.json", views.queue_live, name="queue-live"),
    path("nodes/", views.nodes, name="nodes"),
    path("nodes/live.json", views.nodes_live, name="nodes-live"),
]
