"""The pages. Their addresses are fixed: they are quoted in papers and pull requests."""

from __future__ import annotations

from django.urls import path

from leaderboard.views import (
    about,
    board,
    calendar,
    compare,
    curves,
    embeds,
    entries,
    feeds,
    forms,
    generate,
    notebooks,
    notices,
    pool,
    reported,
    runs,
    weights,
)
from leaderboard.views.forms import also
from leaderboard.views.kept import kept

urlpatterns = [
    path("", also(kept(board.board), table=forms.board, embed=embeds.board), name="board"),
    path("tracks/<slug:slug>/", also(kept(board.track), table=forms.track, embed=embeds.track), name="track"),
    path("tracks/<slug:slug>/reported/", reported.track, name="track-reported"),
    path("tracks/<slug:slug>/card.png", feeds.track_card, name="track-card"),
    path("tracks/<slug:slug>/badge.svg", feeds.track_badge, {"form": "svg"}, name="track-badge"),
    path("tracks/<slug:slug>/badge.json", feeds.track_badge, {"form": "json"}),
    path("tracks/<slug:slug>/live.json", board.track_live, name="track-live"),
    path("tracks/<slug:slug>/results.json", board.track_results, name="track-results"),
    path("entries/<int:entry_id>/", also(kept(entries.entry), table=forms.entry), name="entry"),
    path("entries/<int:entry_id>/card.png", feeds.entry_card, name="entry-card"),
    path("entries/<int:entry_id>/badge.svg", feeds.entry_badge, {"form": "svg"}, name="entry-badge"),
    path("entries/<int:entry_id>/badge.json", feeds.entry_badge, {"form": "json"}),
    path("entries/<int:entry_id>/feed.atom", feeds.entry_feed, name="entry-feed"),
    path("feeds/records.atom", feeds.records, name="records-feed"),
    path("entries/<int:entry_id>/results.json", entries.entry_results, name="entry-results"),
    path("runs/<int:run_id>/", also(kept(runs.run), table=forms.run, embed=embeds.run), name="run"),
    path("runs/<int:run_id>/live.json", runs.run_live, name="run-live"),
    path("runs/<int:run_id>/lineage.json", runs.run_lineage, name="run-lineage"),
    path("runs/<int:run_id>/ask/<slug:wish>/", runs.run_ask, name="run-ask"),
    path("runs/<int:run_id>/log.txt", runs.run_log, name="run-log"),
    path("runs/<int:run_id>/config.toml", runs.run_toml, name="run-toml"),
    path("compare/", also(kept(compare.compare), table=forms.compare, embed=embeds.compare), name="compare"),
    path("compare/curves.json", compare.curves, name="compare-curves"),
    path("calendar/", kept(calendar.calendar), name="calendar"),
    path("calendar.ics", calendar.calendar_feed_view, name="calendar-feed"),
    path("runs/<int:run_id>/curve.png", curves.run_picture, name="run-picture"),
    path("runs/<int:run_id>/curve.csv", curves.run_csv, name="run-csv"),
    path("accounts/notices/", notices.mine, name="notices"),
    path("accounts/notices/<int:subscription_id>/<slug:wish>/", notices.act, name="notice-act"),
    path("notices/<slug:word>/<str:token>/", notices.letter, name="notice-letter"),
    path("runs/<int:run_id>/weights/<slug:name>/<path:path>", weights.file, name="run-weights"),
    path("runs/<int:run_id>/parts/<int:part>/<path:path>", notebooks.file, name="notebook-file"),
    path("queue/", also(kept(pool.queue), table=forms.queue), name="queue"),
    path("queue/live.json", pool.queue_live, name="queue-live"),
    path("nodes/", also(kept(pool.nodes), table=forms.nodes), name="nodes"),
    path("try/", generate.try_it, name="try"),
    path("try/<slug:token>/", generate.generation, name="generation"),
    path("try/<slug:token>/live.json", generate.generation_live, name="generation-live"),
    path("about/", about.about, name="about"),
    path("nodes/live.json", pool.nodes_live, name="nodes-live"),
]
