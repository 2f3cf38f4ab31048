"""The sitemap of the public pages: `/sitemap.xml` lists one file for each kind of page."""

from __future__ import annotations

from datetime import datetime

from django.contrib.sitemaps import GenericSitemap, Sitemap
from django.db.models import QuerySet
from django.urls import reverse

from leaderboard.models import Entry, Run, Track
from scheduler.campaigns.models import Campaign

PAGE_NAMES = (
    "board", "queue", "calendar", "nodes", "campaigns", "sponsors", "try", "about", "learned", "rulings",
    "contributors", "acknowledgements",
)  # fmt: skip


class PageSitemap(Sitemap):  # type: ignore[type-arg]
    """Pages that always exist."""

    def items(self) -> list[str]:
        return list(PAGE_NAMES)

    def location(self, item: str) -> str:
        return reverse(item)


class RunSitemap(Sitemap):  # type: ignore[type-arg]
    def items(self) -> QuerySet[Run]:
        return Run.objects.order_by("-pk").only("pk", "finished_at")

    def lastmod(self, item: Run) -> datetime | None:
        return item.finished_at


SITEMAPS = {
    "pages": PageSitemap,
    "tracks": GenericSitemap({"queryset": Track.objects.order_by("slug")}),
    "entries": GenericSitemap({"queryset": Entry.objects.order_by("-pk").only("pk")}),
    "runs": RunSitemap,
    "campaigns": GenericSitemap({"queryset": Campaign.objects.exclude(state=Campaign.State.DRAFT).order_by("slug")}),
}
