"""Pages of sponsors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import IntegrityError, transaction
from django.db.models import Count, Max, Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.module_loading import import_string
from django.views.decorators.cache import never_cache
from django.views.decorators.http import condition, require_http_methods, require_POST, require_safe

from scheduler import job_groups, job_kinds, matching, node_health, node_slots, node_tokens, pool
from scheduler.models import Event, JoinToken, Lease, Node, Sponsor
from scheduler.sign_in import require_login_from
from scheduler.sponsors import contributions, lending
from scheduler.sponsors.badges import draw_badge
from scheduler.sponsors.contributions import LentTotals
from scheduler.sponsors.forms import NAME_TAKEN, LendForm, NodeSettingsForm, SponsorForm, group_windows
from scheduler.sponsors.wanted_cards import list_wanted_cards

LIVE_SECONDS = 2
"""Refresh interval of a node's page while a job runs or the node is expected; `IDLE_SECONDS` otherwise."""
IDLE_SECONDS = 10
JUST_NOW = timedelta(minutes=30)
"""Time during which a node's page shows that it has just joined."""
MANAGE_NODES = "scheduler.change_node"
"""Permission of maintainers (`leaderboard/permissions.py`); coordinators do not have it."""
JOBS_PER_PAGE = 50
SECOND_STEP_MISSING = (
    "To manage nodes of other owners, complete two-factor authentication. "
    "Sign in with a code from your authenticator app. To set one up, open the admin."
)


def get_user(request: HttpRequest) -> User:
    return cast(User, request.user)


@require_safe
def sponsor_list(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "scheduler/sponsors.html",
        {"thanks": contributions.load_sponsor_list(), "wanted": list_wanted_cards(timezone.now())},
    )


@require_safe
def sponsor_badge(request: HttpRequest, sponsor_id: int) -> HttpResponse:
    """A badge for a sponsor's own web page. Anonymous sponsors have none."""
    sponsor = get_object_or_404(Sponsor, pk=sponsor_id)
    given = contributions.sum_leases(contributions.select_leases(sponsor, include_hidden=False))
    if not given.jobs:
        raise Http404
    hours, unit = (given.gpu_seconds, "GPU-hours") if given.gpu_seconds else (given.cpu_seconds, "CPU-hours")
    picture = draw_badge(settings.SITE_NAME, f"{hours / 3600:,.0f} {unit} lent" if hours >= 3600 else "sponsor")
    return HttpResponse(picture, content_type="image/svg+xml", headers={"Cache-Control": "public, max-age=3600"})


@require_safe
def certificate(request: HttpRequest, sponsor_id: int) -> HttpResponse:
    """A page to print. The public sees what nodes shown by name gave and made, the sponsor that of all nodes."""
    sponsor = get_object_or_404(Sponsor, pk=sponsor_id)
    own = sponsor.user_id == request.user.pk
    leases = contributions.select_leases(sponsor, include_hidden=own)
    given = contributions.sum_leases(leases)
    if not given.jobs:
        raise Http404
    context = {"sponsor": sponsor, "given": given, "own": own, "results": contributions.list_results(leases)}
    return render(request, "scheduler/certificate.html", context)


# --- lending -------------------------------------------------------------------------------------------------------


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def lend(request: HttpRequest) -> HttpResponse:
    """The form of a new node. Redirects to its page with the install commands."""
    user = get_user(request)
    sponsor = Sponsor.objects.filter(user=user).first()
    form = LendForm(request.POST or None, node=Node(owner=user), sponsor=sponsor)
    if request.method == "POST" and form.is_valid():
        message = f"{user.get_username()} lends {form.instance.name}. It has not joined yet."
        try:
            with transaction.atomic():
                node = form.save_settings(user, message)
                save_sponsor(user, form)
                return redirect_with_token(node, node_tokens.create_join_token(renews=node, owner=user))
        except IntegrityError:  # another node took it since the form was checked
            form.add_error("name", NAME_TAKEN)
    return render(request, "scheduler/lend.html", {"form": form})


def save_sponsor(user: User, form: NodeSettingsForm | SponsorForm) -> None:
    if name := form.cleaned_data["sponsor_name"]:
        defaults = {"name": name, "link": form.cleaned_data["sponsor_link"]}
        Sponsor.objects.update_or_create(user=user, defaults=defaults)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def my_nodes(request: HttpRequest) -> HttpResponse:
    """The sponsor's own nodes and public name."""
    user = get_user(request)
    sponsor = Sponsor.objects.filter(user=user).first()
    initial = {"sponsor_name": sponsor.name, "sponsor_link": sponsor.link} if sponsor else None
    form = SponsorForm(request.POST or None, initial=initial)
    if request.method == "POST" and form.is_valid():
        save_sponsor(user, form)
        return redirect("my-nodes")
    nodes = list(Node.objects.filter(owner=user))
    given = contributions.sum_leases_by_node(Lease.objects.filter(node__owner=user.pk))
    context = {
        "form": form,
        "sponsor": sponsor,
        "nodes": [(node, given.get(node.pk, LentTotals())) for node in nodes],
        "given": contributions.add_totals(given.values()),
        "named": any(node.shown and node.pk in given for node in nodes),
        "site_url": settings.SITE_URL,
    }
    return render(request, "scheduler/mine.html", context)


# --- one node --------------------------------------------------------------------------------------------------------


def get_managed_node(request: HttpRequest, node_id: int) -> Node:
    """Return the node for its owner, or for a maintainer after the second step.

    Raises Http404 for everybody else, and PermissionDenied for a maintainer before the second step.
    """
    node = get_object_or_404(Node.objects.select_related("owner__sponsor"), pk=node_id)
    if node.owner_id == request.user.pk:
        return node
    if not get_user(request).has_perm(MANAGE_NODES):
        raise Http404
    if not can_manage_nodes(request):
        raise PermissionDenied(SECOND_STEP_MISSING)
    return node


def can_manage_nodes(request: HttpRequest) -> bool:
    """Return whether this is a maintainer after the second step, who manages the nodes of others and lifts bans."""
    is_satisfied: Callable[[HttpRequest], bool] = import_string(settings.SECOND_STEP_CHECK)
    return get_user(request).has_perm(MANAGE_NODES) and is_satisfied(request)


def redirect_with_token(node: Node, token: str) -> HttpResponse:
    """Redirect to the node's page, with its join token in a cookie for that page. The site stores only its hash."""
    response = redirect("node", node.pk)
    options: dict[str, Any] = {"secure": settings.SESSION_COOKIE_SECURE, "httponly": True, "samesite": "Strict"}
    max_age = int(node_tokens.JOIN_TOKEN_HOURS * 3600)
    response.set_cookie(f"join-{node.pk}", token, max_age=max_age, path=response.url, **options)
    return response


def get_revision(node: Node) -> str:
    """Return a value that changes with the node's events and leases."""
    event = Event.objects.about(node).aggregate(last=Max("pk"))["last"]
    leases = node.leases.aggregate(last=Max("pk"), active=Count("pk", filter=Q(state=Lease.State.ACTIVE)))
    return f"{event}-{leases['last']}-{leases['active']}"


@login_required
@never_cache
@require_safe
def show_node(request: HttpRequest, node_id: int) -> HttpResponse:
    """A node's page for its owner: state, jobs, settings and history."""
    node = get_managed_node(request, node_id)
    jobs = node.leases.order_by().values("job_id").annotate(last=Max("started_at")).order_by("-last", "-job_id")
    page = Paginator(jobs.values_list("job_id", flat=True), JOBS_PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "node": node,
        "can_lift_ban": node.state == Node.State.BANNED and can_manage_nodes(request),
        **build_join_context(node, request.COOKIES.get(f"join-{node.pk}", "")),
        "given": contributions.sum_leases_by_node(node.leases.all()).get(node.pk, LentTotals()),
        **build_work_context(node),
        "page": page,
        "served": summarize_jobs(node, list(page.object_list)),
        "events": list(Event.objects.about(node).order_by("-pk")[:JOBS_PER_PAGE])[::-1],
        "windows": group_windows(node),
        "track": get_track_name(node),
        "slot_tests": node_health.list_slot_tests(node),
        "revision": get_revision(node),
    }
    return render(request, "scheduler/node.html", context)


def get_track_name(node: Node) -> str:
    """Return the name of the track that the node serves; empty if it serves others too."""
    track = job_kinds.list_tracks().get(node.serves_track) if node.serves_track else None
    return track.name if track else node.serves_track


def build_join_context(node: Node, token: str) -> dict[str, Any]:
    """Return the context of the install commands. They are shown only to the browser that has the token."""
    expected = lending.find_usable_join_token(node, token) or lending.find_usable_join_token(node, "")
    has_token = expected is not None and bool(token) and expected.token_hash == node_tokens.hash_token(token)
    return {
        "expected": expected,
        "has_token": has_token,
        "has_gpus": lending.has_gpus(node),
        "has_flash_wheel": lending.has_flash_wheel(node),
        "docker": lending.build_docker_command(node, token) if has_token else "",
        "pipx": lending.build_pipx_command(node, token) if has_token else "",
        "joined": not expected
        and node.token_hash is not None
        and JoinToken.objects.filter(used_by=node, used_at__gt=timezone.now() - JUST_NOW).exists(),
    }


def build_work_context(node: Node) -> dict[str, Any]:
    """Return what the node does.

    While it is online, also how many waiting jobs fit it or why none does, and the tracks that it is large enough for.
    """
    leases = list(Lease.objects.held_by(node).select_related("job").order_by("slot"))
    about = job_kinds.summarize_jobs(lease.job for lease in leases)
    context: dict[str, Any] = {"now": [(lease, about[lease.job_id]) for lease in leases]}
    if node.state != Node.State.ONLINE:
        return context
    now = timezone.now()
    slot, queue = node_slots.build_node_slot(node, now), job_groups.load_queue(now)
    fitting = sum(group.jobs for group in queue.find_fitting(slot))
    tracks = [
        track.name
        for slug, track in job_kinds.list_tracks().items()
        if node.serves_track in ("", slug)
        and matching.find_capability_obstacle(matching.parse_labels(track.needs_labels), 0, slot) is None
    ]
    return {**context, "fitting": fitting, "idle_reason": "" if fitting else queue.explain_idle(slot), "tracks": tracks}


def summarize_jobs(node: Node, ids: list[int]) -> list[dict[str, Any]]:
    """Return what the node did for each of these jobs."""
    leases: dict[int, list[Lease]] = {pk: [] for pk in ids}
    for lease in node.leases.filter(job__in=ids).select_related("job").defer("spec").order_by("pk"):
        leases[lease.job_id].append(lease)
    about = job_kinds.summarize_jobs(held[0].job for held in leases.values())
    return [
        {
            "about": about[pk],
            "started_at": held[0].started_at,
            "seconds": sum(lease.seconds for lease in held),
            "times": len(held),
            "last": held[-1],
        }
        for pk, held in leases.items()
    ]


def live_etag(request: HttpRequest, node_id: int) -> str:
    node = get_managed_node(request, node_id)
    seconds = [lease.seconds for lease in Lease.objects.held_by(node)]
    return f'"{get_revision(node)}-{sum(seconds):.0f}"'


@login_required
@condition(etag_func=live_etag)
@require_safe
def node_live(request: HttpRequest, node_id: int) -> JsonResponse:
    node = get_managed_node(request, node_id)
    expected = lending.find_usable_join_token(node, "")
    context = {"node": node, "expected": expected, **build_work_context(node)}
    return JsonResponse(
        {
            "parts": {"now": render_to_string("scheduler/node.html#now", context)},
            "revision": get_revision(node),
            "wait": LIVE_SECONDS if context["now"] or expected else IDLE_SECONDS,
        }
    )


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit_settings(request: HttpRequest, node_id: int) -> HttpResponse:
    """Change a node's settings."""
    node = get_managed_node(request, node_id)
    sponsor = Sponsor.objects.filter(user=node.owner_id).first() if node.owner_id else None
    user = get_user(request)
    is_owner = node.owner == user
    form = NodeSettingsForm(request.POST or None, node=node, sponsor=sponsor, is_owner=is_owner)
    if request.method == "POST" and form.is_valid():
        form.save_settings(user, f"{user.get_username()} changed the settings of {node.name}.")
        if is_owner:
            save_sponsor(user, form)
        return redirect("node", node.pk)
    return render(request, "scheduler/lend.html", {"form": form, "node": node})


# --- actions -------------------------------------------------------------------------------------------------------


def resume(node: Node, request: HttpRequest) -> None:
    lifts_ban = can_manage_nodes(request)
    resumed = pool.resume_node(node, get_user(request).get_username(), lifts_ban=lifts_ban)
    if not resumed and node.state == Node.State.BANNED:
        raise PermissionDenied


ACTIONS: dict[str, Callable[[Node, HttpRequest], object]] = {
    "drain": lambda node, request: pool.drain_node(node, get_user(request).get_username()),
    "pause": lambda node, request: pool.pause_node(node, get_user(request).get_username()),
    "resume": resume,
    "test": lambda node, request: node_health.request_self_test(node, get_user(request).get_username()),
    "revoke": lambda node, request: node_tokens.revoke_node_token(node, get_user(request).get_username()),
}


@require_login_from("node", "node_id")
@require_POST
def run_action(request: HttpRequest, node_id: int, action: str) -> HttpResponse:
    """Drain, pause, resume, test or revoke. Idempotent. Every change records an Event."""
    if action not in ACTIONS:
        raise Http404
    node = get_managed_node(request, node_id)
    ACTIONS[action](node, request)
    return redirect("node", node.pk)


@require_login_from("node", "node_id")
@require_POST
def regenerate_command(request: HttpRequest, node_id: int) -> HttpResponse:
    """Show a new install command to the user who requested it."""
    node = get_managed_node(request, node_id)
    return redirect_with_token(node, lending.create_install_token(node, get_user(request)))


@require_login_from("node", "node_id")
@require_POST
def delete_node(request: HttpRequest, node_id: int) -> HttpResponse:
    """Delete a node that never joined."""
    node = get_managed_node(request, node_id)
    return redirect("my-nodes") if lending.delete_unjoined_node(node) else redirect("node", node.pk)
