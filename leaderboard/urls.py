"""The pages. Their addresses are fixed: they are quoted in papers and pull requests."""

from __future__ import annotations

from django.urls import path

from leaderboard.views import (
    api_tokens,
    board,
    calendar,
    compare,
    downloads,
    embeds,
    entries,
    feeds,
    formats,
    generate,
    learned,
    notifications,
    pool,
    runs,
    swarms,
)
from leaderboard.views.formats import with_formats
from leaderboard.views.metrics import metrics
from scheduler.page_cache import cache_public

board_page = with_formats(cache_public(board.board), table=formats.export_board, embed=embeds.embed_board)
track_page = with_formats(cache_public(board.track), table=formats.export_track, embed=embeds.embed_track)
entry_page = with_formats(cache_public(entries.entry), table=formats.export_entry)
run_page = with_formats(cache_public(runs.run), table=formats.export_run, embed=embeds.embed_run)
compare_page = with_formats(
    cache_public(compare.compare), table=formats.export_comparison, embed=embeds.embed_comparison
)
queue_page = with_formats(cache_public(pool.queue), table=formats.export_queue)
nodes_page = with_formats(cache_public(pool.nodes), table=formats.export_nodes)

urlpatterns = [
    path("", board_page, name="board"),
    path("metrics", metrics, name="metrics"),
    path("tracks/<slug:slug>/", track_page, name="track"),
    path("tracks/<slug:slug>/reported/", board.track_reported, name="track-reported"),
    path("tracks/<slug:slug>/card.png", feeds.track_card, name="track-card"),
    path("tracks/<slug:slug>/badge.svg", feeds.track_badge, {"form": "svg"}, name="track-badge"),
    path("tracks/<slug:slug>/badge.json", feeds.track_badge, {"form": "json"}),
    path("tracks/<slug:slug>/live.json", board.track_live, name="track-live"),
    path("tracks/<slug:slug>/results.json", board.track_results, name="track-results"),
    path("entries/<int:entry_id>/", entry_page, name="entry"),
    path("entries/<int:entry_id>/card.png", feeds.entry_card, name="entry-card"),
    path("entries/<int:entry_id>/badge.svg", feeds.entry_badge, {"form": "svg"}, name="entry-badge"),
    path("entries/<int:entry_id>/badge.json", feeds.entry_badge, {"form": "json"}),
    path("entries/<int:entry_id>/feed.atom", feeds.entry_feed, name="entry-feed"),
    path("feeds/records.atom", feeds.records, name="records-feed"),
    path("entries/<int:entry_id>/results.json", entries.entry_results, name="entry-results"),
    path("runs/<int:run_id>/", run_page, name="run"),
    path("runs/<int:run_id>/live.json", runs.run_live, name="run-live"),
    path("runs/<int:run_id>/swarm/", cache_public(swarms.swarm), name="run-swarm"),
    path("runs/<int:run_id>/swarm/write/", swarms.swarm_write, name="run-swarm-write"),
    path("runs/<int:run_id>/swarm/live.json", swarms.swarm_live, name="run-swarm-live"),
    path("runs/<int:run_id>/swarm.json", swarms.swarm_events, name="run-swarm-record"),
    path("runs/<int:run_id>/lineage.json", runs.run_lineage, name="run-lineage"),
    path("runs/<int:run_id>/ask/<slug:action>/", runs.perform_action, name="run-ask"),
    path("runs/<int:run_id>/log.txt", downloads.run_log, name="run-log"),
    path("runs/<int:run_id>/config.toml", downloads.run_toml, name="run-toml"),
    path("compare/", compare_page, name="compare"),
    path("compare/curves.json", compare.curves, name="compare-curves"),
    path("calendar/", cache_public(calendar.calendar), name="calendar"),
    path("calendar.ics", calendar.calendar_feed_view, name="calendar-feed"),
    path("runs/<int:run_id>/curve.png", downloads.run_picture, name="run-picture"),
    path("runs/<int:run_id>/curve.csv", downloads.run_csv, name="run-csv"),
    path("accounts/tokens/", api_tokens.list_tokens, name="api-tokens"),
    path("accounts/tokens/<int:token_id>/revoke/", api_tokens.revoke, name="api-token-revoke"),
    path("accounts/notices/", notifications.list_subscriptions, name="notices"),
    path("accounts/notices/<int:subscription_id>/<slug:action>/", notifications.edit_subscription, name="notice-act"),
    path("notices/<slug:word>/<str:token>/", notifications.confirm_or_stop_notices, name="notice-link"),
    path("runs/<int:run_id>/weights/<slug:name>/<path:path>", downloads.run_weights, name="run-weights"),
    path("runs/<int:run_id>/parts/<int:part>/<path:path>", downloads.notebook_file, name="notebook-file"),
    path("graphs/<str:graph_hash>/<str:name>", downloads.graph_file, name="graph-file"),
    path("queue/", queue_page, name="queue"),
    path("queue/live.json", pool.queue_live, name="queue-live"),
    path("nodes/", nodes_page, name="nodes"),
    path("try/", generate.try_it, name="try"),
    path("try/<slug:token>/", generate.generation, name="generation"),
    path("try/<slug:token>/live.json", generate.generation_live, name="generation-live"),
    path("learned/", cache_public(learned.hypotheses), name="learned"),
    path("about/", board.about, name="about"),
    path("acknowledgements/", cache_public(board.acknowledgements), name="acknowledgements"),
    path("nodes/live.json", pool.nodes_live, name="nodes-live"),
]
