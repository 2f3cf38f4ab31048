"""The pages. Their addresses are fixed: they are quoted in papers and pull requests."""

from __future__ import annotations

from django.urls import path

from leaderboard.views import about, board, calendar, curves, entries, generate, notebooks, notices, pool, runs, weights

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
    path("calendar/", calendar.calendar, name="calendar"),
    path("calendar.ics", calendar.calendar_feed_view, name="calendar-feed"),
    path("runs/<int:run_id>/curve.png", curves.run_picture, name="run-picture"),
    path("runs/<int:run_id>/curve.csv", curves.run_csv, name="run-csv"),
    path("accounts/notices/", notices.mine, name="notices"),
    path("accounts/notices/<int:subscription_id>/<slug:wish>/", notices.act, name="notice-act"),
    path("notices/<slug:word>/<str:token>/", notices.letter, name="notice-letter"),
    path("runs/<int:run_id>/weights/<slug:name>/<path:path>", weights.file, name="run-weights"),
    path("runs/<int:run_id>/parts/<int:part>/<path:path>", notebooks.file, name="notebook-file"),
    path("queue/", pool.queue, name="queue"),
    path("queue/live.json", pool.queue_live, name="queue-live"),
    path("nodes/", pool.nodes, name="nodes"),
    path("try/", generate.try_it, name="try"),
    path("try/<slug:token>/", generate.generation, name="generation"),
    path("try/<slug:token>/live.json", generate.generation_live, name="generation-live"),
    path("about/", about.about, name="about"),
    path("nodes/live.json", pool.nodes_live, name="nodes-live"),
]
