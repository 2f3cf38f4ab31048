"""Publishes weights: a row that keeps them, then an outbox message that uploads them (docs/how-to/publishing.md).

One run has one repository. Each publication is one commit with its mark, which is searched first, so that a retry finds
the commit of an earlier attempt. Releases have a tag too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.text import slugify

from leaderboard import outbox, run_jobs
from leaderboard.models import OutboxMessage, Publication, Run
from leaderboard.models.publications import FINAL
from leaderboard.publishing import hub_files, weights
from leaderboard.publishing.model_card import build_run_url
from leaderboard.run_states import RunError
from scheduler import hub
from scheduler.models import SITE_ACTOR, Blob, Event
from trainer.protocol.files import build_checkpoint_path

KIND = "hub"
RULES = {
    "record": ("records", "It holds a record."),
    "nightly": ("nightly trains of main", "It is a nightly train of main."),
    "monthly": ("monthly trains", "It is a monthly train."),
}
"""Value of HUB_PUBLISH: its description, and the reason shown for such a run."""
NOT_CONFIGURED = "Publishing is not configured: set HUB_ORGANIZATION and HF_TOKEN, then retry."


def is_connected() -> bool:
    """Return whether the site has a token for the Hub."""
    return bool(settings.HUB_ORGANIZATION and settings.HF_TOKEN)


def describe_rules() -> str:
    """Return a sentence about which runs are published."""
    always = [RULES[word][0] for word in RULES if word in settings.HUB_PUBLISH]
    if not always:
        return "Maintainers can publish weights on the Hub."
    first = " and ".join([", ".join(always[:-1]), always[-1]] if len(always) > 1 else always)
    return f"{first[0].upper()}{first[1:]} are published on the Hub automatically. Maintainers can publish other runs."


def get_publish_reason(run: Run) -> str:
    if run.trust == Run.Trust.RECORD and "record" in settings.HUB_PUBLISH:
        return RULES["record"][1]
    return RULES[run.purpose][1] if run.purpose in settings.HUB_PUBLISH and run.purpose in RULES else ""


# --- requests ---------------------------------------------------------------------------------------------------------


def publish_changed_runs(events: Sequence[Event]) -> None:
    """Listener of Events: queue publications of runs that have changed."""
    changed = {event.target_id for event in events if event.target_kind == "run"}
    finished = Run.objects.filter(pk__in=changed, state=Run.State.FINISHED).exclude(checkpoint=None)
    for run in finished.select_related("entry", "checkpoint"):
        publication = run.publications.filter(name=FINAL).first()
        if publication is not None and is_card_outdated(publication, run):
            enqueue_upload(publication)
        elif publication is None and (reason := get_publish_reason(run)):
            publish_run(run, reason)


def is_card_outdated(publication: Publication, run: Run) -> bool:
    """Return whether the card on the Hub has an outdated trust."""
    done = OutboxMessage.objects.filter(key=get_message_key(publication)).values_list("result", flat=True).first() or {}
    return done.get("trust") not in (None, run.trust)


def is_publishable(run: Run) -> bool:
    """Return whether a maintainer can publish a run's final weights now."""
    if not is_connected() or run.state != Run.State.FINISHED:
        return False
    return run.checkpoint_id is not None or bool(run_jobs.is_notebook(run) and weights.list_notebook_model(run))


def publish_run(run: Run, reason: str, actor: str = SITE_ACTOR) -> Publication:
    """Publish or update a finished run's final weights, or the model of its notebook. Raises RunError."""
    found = weights.find_final_weights(run)
    if found is None:
        raise RunError(f"Run {run.pk} is {run.state}: there are no final weights to publish.")
    with transaction.atomic():
        publication = keep_weights(run, *found, FINAL, reason, actor)
        enqueue_upload(publication)
    return publication


def keep_weights(
    run: Run,
    manifest: dict[str, Any],
    blobs: Iterable[Blob],
    name: str,
    reason: str,
    actor: str = SITE_ACTOR,
    is_release: bool = False,
) -> Publication:
    """Keep weights under a name, which fits into an address; the first ones count. Requires a transaction.

    `manifest`: a `protocol.Checkpoint`.
    """
    given = {"step": manifest["step"], "manifest": manifest, "reason": reason[:200], "is_release": is_release}
    publication, created = Publication.objects.get_or_create(run=run, name=name, defaults=given)
    if created:
        publication.blobs.set(blobs)
        what = "its final weights" if name == FINAL else f"the weights of step {manifest['step']}"
        how = "Kept for good" if is_release or name == FINAL else "Kept"
        Event.record(actor, run, f"{how}: {what}. {reason}")
    return publication


def enqueue_upload(publication: Publication) -> None:
    """Queue an update of the Hub. Requires a transaction."""
    if is_connected():
        outbox.enqueue(KIND, get_message_key(publication), {"publication": publication.pk})


def get_message_key(publication: Publication) -> str:
    run, name = publication.run_id, publication.name
    return f"hub.run:{run}" if name == FINAL else f"hub.release:{run}:{name}"


# --- doing it ---------------------------------------------------------------------------------------------------------


def upload_publication(queued: OutboxMessage) -> Mapping[str, Any]:
    """Handle a message of kind `KIND`: upload, commit and record it."""
    related = ("run__entry__bundle", "run__track", "run__season", "run__start_run")
    publication = Publication.objects.select_related(*related).get(pk=queued.payload["publication"])
    if not is_connected():
        raise outbox.PermanentError(NOT_CONFIGURED)
    check_earlier_published(publication)
    name = publication.repository or get_repository_name(publication.run)
    repository = hub.Repository(name, endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN)
    with hub_files.prepare_upload(queued, str(publication.pk)) as folder:
        commit = ensure_commit(publication, repository, build_mark(publication, queued.version), folder)
    row = Publication.objects.filter(pk=publication.pk)
    with transaction.atomic():
        row.update(repository=name, commit=commit)
        if row.filter(published_at=None).update(published_at=timezone.now()):
            Event.record(SITE_ACTOR, publication.run, f"Published as {name} on the Hub.")
    return {"repository": name, "commit": commit, "trust": publication.run.trust}


def ensure_commit(publication: Publication, repository: hub.Repository, own: str, folder: Path) -> str:
    """Return the publication's commit; create it unless an earlier attempt did."""
    repository.create_if_missing()
    earlier = repository.list_commits()
    run_url = build_run_url(publication.run)
    if others := [mark for commit in earlier for mark in commit.marks if not mark.startswith(run_url)]:
        raise hub.HubError(f"{repository.name} holds what came from {others[0].split()[0]}: nothing was changed there.")
    commit, title = find_final_commit(publication, own, earlier), build_commit_title(publication)
    if commit is None and any(has_mark(commit, own) for commit in earlier):
        # The weights are there, and they never change: what is said of them may have.
        files = hub_files.build_descriptions(publication, repository.name)
        commit = repository.publish(files, title, own, earlier)
    elif commit is None:
        if is_later_published(publication):
            raise outbox.PermanentError(
                f"Weights of a later step are on the Hub: `main` of {repository.name} must not go back."
            )
        files = hub_files.build_files(publication, repository.name, folder)
        commit = repository.publish(files, title, own, earlier, instead_of=hub_files.RUN_FOLDER)
    if publication.name != FINAL:
        repository.create_tag(publication.name, commit)
    return commit


def find_final_commit(publication: Publication, own: str, earlier: Sequence[hub.Commit]) -> str | None:
    """Return the commit that leaves nothing to do: of this very mark; once a later step is there, of any version."""
    found = next((commit.id for commit in earlier if own in commit.marks), None)
    if found is None and is_later_published(publication):
        found = next((commit.id for commit in earlier if has_mark(commit, own)), None)
    return found


def is_later_published(publication: Publication) -> bool:
    later = publication.run.publications.filter(step__gt=publication.step)
    return later.exclude(published_at=None).exists()


def has_mark(commit: hub.Commit, mark: str) -> bool:
    begin = mark.rpartition(" ")[0] + " "
    return any(mark.startswith(begin) for mark in commit.marks)


def check_earlier_published(publication: Publication) -> None:
    """Raise RetryLater while an earlier step is unpublished: `main` of the repository must not go back."""
    earlier = publication.run.publications.filter(step__lt=publication.step, published_at=None)
    messages = OutboxMessage.objects.filter(key__in=[get_message_key(publication) for publication in earlier])
    if waiting := messages.exclude(state=OutboxMessage.State.FAILED).first():
        raise outbox.RetryLater(f"Waits for {waiting.key}, which is of an earlier step.", timedelta(minutes=1))


def get_repository_name(run: Run) -> str:
    """Return owner/name, from the architecture and the run's id, which never change."""
    return f"{settings.HUB_ORGANIZATION}/{slugify(run.entry.architecture)[:60] or 'model'}-run-{run.pk}"


def list_publications(run: Run) -> list[dict[str, str]]:
    """Return the publications for a run's page: name, description and URL."""
    rows = []
    for publication in run.publications.all():
        what = "the final weights" if publication.is_final else f"the weights of step {publication.step:,}"
        file = f"{build_checkpoint_path(publication.step)}/{weights.get_entry_file(publication.manifest)}"
        here = reverse("run-weights", args=[run.pk, publication.name, file])
        name, url = publication.repository or publication.name, get_hub_url(publication)
        rows.append({"name": name, "what": what, "hub": url, "here": here})
    return rows


def get_hub_url(publication: Publication) -> str:
    """Return the URL on the Hub; empty until it is published."""
    if not publication.published_at:
        return ""
    tree = "" if publication.name == FINAL else f"/tree/{publication.name}"
    return f"{settings.HUB_ENDPOINT}/{publication.repository}{tree}"


def build_mark(publication: Publication, version: int) -> str:
    return f"{build_run_url(publication.run)} {publication.name} {version}"


def build_commit_title(publication: Publication) -> str:
    what = "final weights" if publication.name == FINAL else publication.name
    return f"Run {publication.run_id}: {what}, step {publication.step}"


# --- manage.py check --------------------------------------------------------------------------------------------------


def check_hub_settings(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    if bool(settings.HUB_ORGANIZATION) == bool(settings.HF_TOKEN):
        return []
    have, lack = ("HUB_ORGANIZATION", "HF_TOKEN") if settings.HUB_ORGANIZATION else ("HF_TOKEN", "HUB_ORGANIZATION")
    return [
        Warning(
            f"{have} is set and {lack} is not: nothing is published.", hint="docs/how-to/publishing.md", id="hub.W001"
        )
    ]
