"""The sponsors' pages: find, act, render."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import condition, require_http_methods, require_POST, require_safe

from scheduler import job_kinds, pool
from scheduler.models import Event, JoinToken, Lease, Node, Sponsor
from scheduler.node_api import auth
from scheduler.sponsors import contributions, lending
from scheduler.sponsors.badges import badge
from scheduler.sponsors.contributions import Given
from scheduler.sponsors.forms import LendForm, SponsorForm, WishesForm, stretches

LIVE_SECONDS = 2
"""How soon a page asks again while something is about to change; `IDLE_SECONDS` otherwise."""
IDLE_SECONDS = 10
JUST_NOW = timedelta(minutes=30)
"""So long a node's page says that it has joined."""
MANAGE_NODES = "scheduler.change_node"
"""Permission of maintainers (`leaderboard/permissions.py`); coordinators do not have it."""
SERVED = 50
"""Jobs on one page of a node."""


def person(request: HttpRequest) -> User:
    return cast(User, request.user)


# --- the public list -------------------------------------------------------------------------------------------------


@require_safe
def sponsor_list(request: HttpRequest) -> HttpResponse:
    return render(request, "scheduler/sponsors.html", {"thanks": contributions.thanks()})


@require_safe
def sponsor_badge(request: HttpRequest, sponsor_id: int) -> HttpResponse:
    """A picture for a sponsor's own page; one who stays anonymous has none."""
    sponsor = get_object_or_404(Sponsor, pk=sponsor_id)
    given = contributions.of_sponsor(sponsor, whole=False)
    if not given.jobs:
        raise Http404
    hours, unit = (given.gpu_seconds, "GPU-hours") if given.gpu_seconds else (given.cpu_seconds, "CPU-hours")
    picture = badge(settings.SITE_NAME, f"{hours / 3600:,.0f} {unit} lent" if hours >= 3600 else "sponsor")
    return HttpResponse(picture, content_type="image/svg+xml", headers={"Cache-Control": "public, max-age=3600"})


@require_safe
def certificate(request: HttpRequest, sponsor_id: int) -> HttpResponse:
    """A page to print. Everybody sees what the nodes that are shown gave, the sponsor all of it."""
    sponsor = get_object_or_404(Sponsor, pk=sponsor_id)
    own = sponsor.user_id == request.user.pk
    given = contributions.of_sponsor(sponsor, whole=own)
    if not given.jobs and not own:
        raise Http404
    return render(request, "scheduler/certificate.html", {"sponsor": sponsor, "given": given, "own": own})


# --- lending -------------------------------------------------------------------------------------------------------


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def lend(request: HttpRequest) -> HttpResponse:
    """The form; when all is said, on to the new node's page with the lines to paste."""
    user = person(request)
    sponsor = Sponsor.objects.filter(user=user).first()
    form = LendForm(request.POST or None, sponsor=sponsor, initial={} if sponsor else {"sponsor_name": user.username})
    if request.method == "POST" and form.is_valid():
        try:
            node, token = lending.lend(user, form.cleaned_data["name"], form.gpus(), form.wishes())
        except lending.TooManyNodes as error:
            form.add_error(None, str(error))
        else:
            introduced(user, form)
            return with_token(redirect("node", node.pk), node, token)
    return render(request, "scheduler/lend.html", {"form": form})


def introduced(user: User, form: WishesForm | SponsorForm) -> None:
    if name := form.cleaned_data["sponsor_name"]:
        lending.introduce(user, name, form.cleaned_data["sponsor_link"])


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def mine(request: HttpRequest) -> HttpResponse:
    """The sponsor's own nodes, and the name that the public sees."""
    user = person(request)
    sponsor = Sponsor.objects.filter(user=user).first()
    initial = {"sponsor_name": sponsor.name, "sponsor_link": sponsor.link} if sponsor else None
    form = SponsorForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        introduced(user, form)
        return redirect("my-nodes")
    nodes = list(Node.objects.filter(owner=user))
    given = contributions.of_leases(Lease.objects.filter(node__owner=user.pk))
    context = {
        "form": form,
        "sponsor": sponsor,
        "nodes": [(node, given.get(node.pk, Given())) for node in nodes],
        "given": contributions.total(given.values()),
        "named": any(node.shown and node.pk in given for node in nodes),
        "site_url": settings.SITE_URL,
    }
    return render(request, "scheduler/mine.html", context)


# --- one node --------------------------------------------------------------------------------------------------------


SECOND_STEP_MISSING = (
    "You manage nodes of others only after the second step. "
    "Sign in with a code from your authenticator app. To set one up, open the admin."
)


def get_managed_node(request: HttpRequest, node_id: int) -> Node:
    """Return the node for its owner, or for a maintainer after the second step.

    Raises Http404 for everybody else, and PermissionDenied for a maintainer before the second step.
    """
    node = get_object_or_404(Node.objects.select_related("owner__sponsor"), pk=node_id)
    if node.owner_id == request.user.pk:
        return node
    if not person(request).has_perm(MANAGE_NODES):
        raise Http404
    if not can_manage_nodes(request):
        raise PermissionDenied(SECOND_STEP_MISSING)
    return node


def can_manage_nodes(request: HttpRequest) -> bool:
    """Return whether this is a maintainer after the second step, who manages the nodes of others and lifts bans."""
    is_satisfied: Callable[[HttpRequest], bool] = import_string(settings.SECOND_STEP_CHECK)
    return person(request).has_perm(MANAGE_NODES) and is_satisfied(request)


def cookie(node: Node) -> str:
    return f"join-{node.pk}"


def with_token(response: HttpResponseRedirect, node: Node, token: str) -> HttpResponseRedirect:
    """Let the browser keep the join token, for the node's page alone: the site knows only its hash."""
    response.set_cookie(
        cookie(node),
        token,
        max_age=int(auth.JOIN_TOKEN_HOURS * 3600),
        path=response.url,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Strict",
    )
    return response


def revision(node: Node) -> str:
    """Return a word that changes whenever the page looks different: a state, a lease that begins or ends."""
    event = Event.objects.about(node).aggregate(last=Max("pk"))["last"]
    leases = node.leases.aggregate(last=Max("pk"), active=Count("pk", filter=Q(state=Lease.State.ACTIVE)))
    return f"{event}-{leases['last']}-{leases['active']}"


@login_required
@never_cache
@require_safe
def node(request: HttpRequest, node_id: int) -> HttpResponse:
    """A node's page for its owner: how it is, what it served, what it is told."""
    found = get_managed_node(request, node_id)
    word = request.GET.get("page", "1")
    page = max(int(word), 1) if word.isdecimal() and len(word) < 10 else 1
    served, more = served_by(found, page)
    context = {
        "node": found,
        "can_lift_ban": found.state == Node.State.BANNED and can_manage_nodes(request),
        **joining(found, request.COOKIES.get(cookie(found), "")),
        "given": contributions.of_leases(found.leases.all()).get(found.pk, Given()),
        "now": at_work(found),
        "served": served,
        "page": page,
        "more": more,
        "events": list(Event.objects.about(found).order_by("-pk")[:SERVED])[::-1],
        "windows": stretches(found),
        "track": job_kinds.list_tracks().get(found.serves_track, found.serves_track) if found.serves_track else "",
        "revision": revision(found),
    }
    return render(request, "scheduler/node.html", context)


def joining(node: Node, token: str) -> dict[str, Any]:
    """Return whether the node is expected, with what to paste for whoever has the token, and whether it has come."""
    expected = lending.waits_with(node, token) or lending.waits_with(node, "")
    lines = expected is not None and bool(token) and expected.token_hash == auth.hash_token(token)
    return {
        "expected": expected,
        "docker": lending.docker_line(node, token) if lines else "",
        "pipx": lending.pipx_line(node, token) if lines else "",
        "joined": not expected
        and node.token_hash is not None
        and JoinToken.objects.filter(used_by=node, used_at__gt=timezone.now() - JUST_NOW).exists(),
    }


def at_work(node: Node) -> list[tuple[Lease, job_kinds.JobSummary]]:
    leases = list(Lease.objects.held_by(node).select_related("job").order_by("slot"))
    about = job_kinds.summarize_jobs(lease.job for lease in leases)
    return [(lease, about[lease.job_id]) for lease in leases]


def served_by(node: Node, page: int) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of the jobs that the node worked on, the last first, and whether there are more."""
    start = (page - 1) * SERVED
    jobs = node.leases.order_by().values("job_id").annotate(last=Max("started_at")).order_by("-last", "-job_id")
    ids = [row["job_id"] for row in jobs[start : start + SERVED + 1]]
    leases: dict[int, list[Lease]] = {}
    for lease in node.leases.filter(job__in=ids[:SERVED]).select_related("job").defer("spec").order_by("pk"):
        leases.setdefault(lease.job_id, []).append(lease)
    about = job_kinds.summarize_jobs(held[0].job for held in leases.values())
    return [served(about[pk], leases[pk]) for pk in ids[:SERVED] if pk in leases], len(ids) > SERVED


def served(about: job_kinds.JobSummary, leases: list[Lease]) -> dict[str, Any]:
    seconds = sum(lease.seconds for lease in leases)
    return {
        "about": about,
        "started_at": leases[0].started_at,
        "seconds": seconds,
        "times": len(leases),
        "last": leases[-1],
    }


def live_etag(request: HttpRequest, node_id: int) -> str:
    found = get_managed_node(request, node_id)
    seconds = [lease.seconds for lease in Lease.objects.held_by(found)]
    return f'"{revision(found)}-{sum(seconds):.0f}"'


@login_required
@condition(etag_func=live_etag)
@require_safe
def node_live(request: HttpRequest, node_id: int) -> JsonResponse:
    found = get_managed_node(request, node_id)
    now, expected = at_work(found), lending.waits_with(found, "")
    context = {"node": found, "now": now, "expected": expected}
    return JsonResponse(
        {
            "parts": {"now": render_to_string("scheduler/parts/now.html", context)},
            "revision": revision(found),
            "wait": LIVE_SECONDS if now or expected else IDLE_SECONDS,
        }
    )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def wishes(request: HttpRequest, node_id: int) -> HttpResponse:
    """Change what a node is lent for."""
    found = get_managed_node(request, node_id)
    sponsor = Sponsor.objects.filter(user=found.owner_id).first() if found.owner_id else None
    form = WishesForm(request.POST or None, node=found, sponsor=sponsor)
    if request.method == "POST" and form.is_valid():
        lending.change_wishes(found, form.wishes(), person(request).get_username())
        if found.owner == request.user:
            introduced(person(request), form)
        return redirect("node", found.pk)
    return render(request, "scheduler/lend.html", {"form": form, "node": found})


# --- one click each ------------------------------------------------------------------------------------------------


def resume(node: Node, request: HttpRequest) -> None:
    lifts_ban = can_manage_nodes(request)
    resumed = pool.resume_node(node, person(request).get_username(), lifts_ban=lifts_ban)
    if not resumed and node.state == Node.State.BANNED:
        raise PermissionDenied


ACTIONS: dict[str, Callable[[Node, HttpRequest], object]] = {
    "drain": lambda node, request: pool.drain_node(node, person(request).get_username()),
    "pause": lambda node, request: pool.pause_node(node, person(request).get_username()),
    "resume": resume,
    "revoke": lambda node, request: auth.revoke_node_token(node, person(request).get_username()),
}


@login_required
@require_POST
def act(request: HttpRequest, node_id: int, action: str) -> HttpResponse:
    """Drain, pause, resume or revoke; doing it twice does no harm. Every change leaves an Event."""
    if action not in ACTIONS:
        raise Http404
    found = get_managed_node(request, node_id)
    ACTIONS[action](found, request)
    return redirect("node", found.pk)


@login_required
@require_POST
def rotate(request: HttpRequest, node_id: int) -> HttpResponse:
    """Show a new line to join with, to whoever asked."""
    found = get_managed_node(request, node_id)
    return with_token(redirect("node", found.pk), found, lending.new_line(found, person(request)))


@login_required
@require_POST
def forget(request: HttpRequest, node_id: int) -> HttpResponse:
    """Remove a node that never joined."""
    found = get_managed_node(request, node_id)
    return redirect("my-nodes") if lending.forget(found) else redirect("node", found.pk)
