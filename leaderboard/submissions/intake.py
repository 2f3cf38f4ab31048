"""The one way in: a commit becomes an entry; a maintainer's word about exactly that commit makes it run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from leaderboard import permissions, runs
from leaderboard.job_handlers import smoke_tests
from leaderboard.models import Entry, PullRequest, Run, Track
from leaderboard.submissions import notebook_series, repositories
from leaderboard.submissions.notebook_cells import NotebookError
from leaderboard.submissions.notebook_series import Series
from leaderboard.submissions.repositories import MODELS, Mirror, RepositoryError
from scheduler import storage
from scheduler.models import Event
from trainer.accounting.budget import Budget

DICTIONARY, CONTRACT = f"{MODELS}__init__.py", f"{MODELS}base.py"
DICTS = ("ARCHITECTURES", "PRESETS")
"""What an architecture entry may change in the dictionary's file."""
ENTRY_SETS: dict[str, frozenset[str] | None] = {
    "model": None,
    "recipe": None,
    "train": frozenset({"batch", "micro_batch"}),
}
"""What an entry may set in a run's configuration (None: any name). Budget, seed, data and systems are the track's."""
CONFIG_LENGTH = 10_000
SITE = "site"


class IntakeError(ValueError):
    """The entry cannot be taken or changed as asked; the message is a sentence for whoever asked."""


@dataclass(frozen=True)
class CommitSummary:
    """What a commit says, as far as an entry needs it. Made without a transaction: git is slow."""

    repository: str
    sha: str
    author: str
    subject: str
    base_sha: str
    changed_files: list[str]
    bundle: bytes
    architectures: dict[str, str]
    changes_contract: bool = False
    """Whether what all architectures share differs from main's: it runs before the trainer guards its loop."""

    @property
    def kind(self) -> Entry.Kind:
        inside = [path for path in self.changed_files if path.startswith(MODELS)]
        if notebook_series.find_series_names(self.changed_files) and not inside:
            return Entry.Kind.NOTEBOOK
        outside = [path for path in self.changed_files if not path.startswith(MODELS)]
        is_open = outside or self.changes_contract or not self.base_sha
        return Entry.Kind.OPEN if is_open else Entry.Kind.ARCHITECTURE

    def changed_architecture(self) -> str:
        """Return the one architecture whose file differs from main's, the dict's first where nothing differs."""
        files = {name: module.replace(".", "/") for name, module in self.architectures.items()}
        changed = [
            name
            for name, path in files.items()
            if any(file == f"{path}.py" or file.startswith(f"{path}/") for file in self.changed_files)
        ]
        if len(changed) > 1:
            raise IntakeError(f"The commit changes {' and '.join(changed)}: say which one to train.")
        return changed[0] if changed else next(iter(self.architectures))


def fetch_commit(repository: str, revision: str) -> CommitSummary:
    """Fetch the repository and read one commit; raise IntakeError with one sentence if it cannot be an entry."""
    try:
        source = repositories.open_mirror(repository)
        source.fetch()
        source.fetch_main()
        return summarize_commit(source, source.resolve(revision))
    except RepositoryError as error:
        raise IntakeError(str(error)) from error


def summarize_commit(source: Mirror, sha: str) -> CommitSummary:
    sources = source.model_sources(sha)
    base = source.base(sha)
    author, subject = source.described(sha)
    return CommitSummary(
        repository=source.address,
        sha=sha,
        author=author,
        subject=subject,
        base_sha=base or "",
        changed_files=source.changed_files(sha, base),
        bundle=repositories.pack_bundle(sources),
        architectures=parse_architectures(sources),
        changes_contract=base is not None and changes_contract(sources, source.model_sources(base)),
    )


def changes_contract(sources: Mapping[str, bytes], before: Mapping[str, bytes]) -> bool:
    """Whether the contract differs, or anything of the dictionary's file but its dicts."""
    if sources.get(CONTRACT) != before.get(CONTRACT):
        return True
    return DICTIONARY not in before or dump_without_dicts(sources[DICTIONARY]) != dump_without_dicts(before[DICTIONARY])


def dump_without_dicts(source: bytes) -> str:
    """Return what a file says, comments and the values of `DICTS` aside. It was parsed before."""
    tree = ast.parse(source.decode())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in DICTS:
            plain = all(
                isinstance(part, ast.Constant | ast.Tuple | ast.Dict | ast.expr_context)
                for part in ast.walk(node.value)
            )
            node.value = ast.Constant(None) if plain else node.value
    return ast.dump(tree)


def parse_architectures(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the ARCHITECTURES dict of a commit, read as text: nothing of an entry is imported here."""
    if DICTIONARY not in sources:
        raise IntakeError(f"The commit has no {DICTIONARY}, which names its architectures.")
    try:
        tree = ast.parse(sources[DICTIONARY].decode())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise IntakeError(f"{DICTIONARY} is not valid Python.") from None
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "ARCHITECTURES" for target in targets):
            return check_architectures(node.value, sources)  # type: ignore[attr-defined]
    raise IntakeError(f"{DICTIONARY} has no dict named ARCHITECTURES.")


def check_architectures(node: ast.expr | None, sources: Mapping[str, bytes]) -> dict[str, str]:
    try:
        found = ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        found = None
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(text, str) for pair in found.items() for text in pair)
    ):
        raise IntakeError(f'ARCHITECTURES in {DICTIONARY} must be a plain dict: {{"name": "trainer.models.file"}}.')
    for name, module in found.items():
        path = module.replace(".", "/")
        if not re.fullmatch(r"trainer\.models(\.\w+)+", module) or not (
            f"{path}.py" in sources or f"{path}/__init__.py" in sources
        ):
            raise IntakeError(f"ARCHITECTURES names {module} for {name}, and the commit has no such file in {MODELS}")
    return found


def submit_entry(
    repository: str,
    sha: str,
    title: str,
    architecture: str,
    track: Track,
    *,
    author: str = "",
    hypothesis: str = "",
    url: str = "",
    config: Mapping[str, Any] | None = None,
    kind: Entry.Kind | None = None,
    requested_by: AbstractBaseUser | None = None,
    pull_request: PullRequest | None = None,
    actor: str = SITE,
) -> Entry:
    """Make an entry of a commit (`sha` may be a branch: it is resolved now) and return it.

    An empty `architecture` means the one whose file the commit changes. A commit that changes notebooks and no
    architecture is a notebook entry, whose `architecture` is the notebook's name. The same commit, architecture and
    track give the same entry, as it is. Raises IntakeError with one sentence.
    """
    if track.kind == Track.Kind.PLAYGROUND and not hypothesis.strip():
        raise IntakeError(f"{track.name} takes a hypothesis: say what you expect to see, and why, in a sentence.")
    check_config(config or {})
    reading = fetch_commit(repository, sha)
    if track.kind == Track.Kind.SWARM and (reading.changed_files or not reading.base_sha):
        raise IntakeError(
            f"{track.name} is trained on many people's machines, which run the site's own code only: enter an"
            " architecture as it is on main, without changes."
        )
    kind = kind or reading.kind
    notebooks: list[dict[str, Any]] = []
    if kind == Entry.Kind.NOTEBOOK:
        series = read_notebooks(reading, architecture, track)
        reading, architecture = replace(reading, bundle=series.bundle), series.name
        notebooks = [part.model_dump() for part in series.parts]
    else:
        architecture = choose_architecture(reading, architecture)
    return store_entry(
        reading,
        architecture,
        track,
        actor=actor,
        kind=kind,
        title=title.strip()[:120] or f"{architecture} at {reading.sha[:8]}",
        author=(author or reading.author)[:120],
        hypothesis=hypothesis,
        url=url,
        config=dict(config or {}),
        notebooks=notebooks,
        requested_by=requested_by,
        pull_request=pull_request,
    )


def choose_architecture(reading: CommitSummary, wanted: str) -> str:
    architecture = wanted or reading.changed_architecture()
    if architecture not in reading.architectures:
        known = ", ".join(sorted(reading.architectures)) or "none"
        raise IntakeError(f"The commit has no architecture {architecture!r}; it has {known}.")
    return architecture


def read_notebooks(reading: CommitSummary, wanted: str, track: Track) -> Series:
    """Return the notebooks of a commit that are to run. They have no score, so they go where nothing is compared."""
    if track.kind == Track.Kind.COMPETITION:
        raise IntakeError(f"Notebooks run on community and playground tracks; {track.name} compares architectures.")
    try:
        name = notebook_series.choose_series(reading.changed_files, wanted)
        return notebook_series.read_series(repositories.open_mirror(reading.repository), reading.sha, name)
    except (NotebookError, RepositoryError) as error:
        raise IntakeError(str(error)) from error


def store_entry(reading: CommitSummary, architecture: str, track: Track, *, actor: str, **fields: Any) -> Entry:
    """Store what was read as an entry, once."""
    bundle = storage.store_bytes(reading.bundle)
    with transaction.atomic():
        entry, created = Entry.objects.get_or_create(
            repository=reading.repository,
            sha=reading.sha,
            architecture=architecture,
            track=track,
            defaults={
                **fields,
                "bundle": bundle,
                "base_sha": reading.base_sha,
                "changed_files": reading.changed_files[: repositories.LISTED_FILES],
            },
        )
        if created:
            Event.record(
                actor, entry, f"{entry.title}: commit {entry.sha[:8]} entered for {track.name} ({entry.kind})."
            )
    return entry


def check_config(config: Mapping[str, Any]) -> None:
    for section, values in config.items():
        if section not in ENTRY_SETS:
            raise IntakeError(f"An entry cannot set {section!r} of the configuration, only {' and '.join(ENTRY_SETS)}.")
        if not isinstance(values, Mapping):
            raise IntakeError(f"The section {section!r} of the configuration must be a table of names and values.")
        allowed = ENTRY_SETS[section]
        if allowed is not None and (other := sorted(set(values) - allowed)):
            raise IntakeError(f"An entry cannot set {section}.{other[0]}: the track fixes it.")
    if len(json.dumps(config)) > CONFIG_LENGTH:
        raise IntakeError("The entry's configuration is too long.")


def approve_entry(
    entry: Entry,
    sha: str,
    user: AbstractBaseUser | None,
    *,
    sentence: str = "",
    actor: str = "",
    budget: str = "",
    impact: int | None = None,
) -> list[Run]:
    """Let exactly this commit run, and return the entry's runs. Approving twice changes nothing.

    `sha` is what the maintainer looked at; another one is refused. `user` is None for the site itself, and for
    somebody without an account here whose right the caller has checked: `actor` names him. `budget` is a smaller one
    than the track's for the first run, `impact` its place within its priority. Raises IntakeError.
    """
    check_permission(user, "approve", entry)
    if sha != entry.sha:
        raise IntakeError(f"You looked at {sha[:8]}, but this entry is {entry.sha[:8]}: look again, then approve that.")
    if entry.bundle_id is None:
        raise IntakeError("This entry has no files to run.")
    budget = parse_budget(entry, budget)
    actor = actor or (user.get_username() if user else SITE)
    release = storage.store_release()
    open_states = [Entry.State.PROPOSED, Entry.State.SMOKE]
    with transaction.atomic():
        approved = Entry.objects.filter(pk=entry.pk, sha=sha, state__in=open_states).update(
            state=Entry.State.APPROVED, approved_by=user, approved_at=timezone.now(), reason=""
        )
        entry.refresh_from_db()
        if entry.state != Entry.State.APPROVED:
            raise IntakeError(f"This entry is {entry.state}, so it cannot be approved.")
        if approved:
            said = sentence or f"Commit {sha[:8]} approved{f', with a budget of {budget}' if budget else ''}."
            Event.record(actor, entry, said)
            if impact is not None:
                set_impact(entry, impact, actor)
            # One that was withdrawn and is asked for again begins anew: what was cancelled stays so.
            if not entry.runs.exclude(state=Run.State.CANCELLED).exists() and entry.kind != Entry.Kind.MAIN:
                runs.make_first_run(entry, budget=budget, actor=actor)
            if smoke_tests.is_due(entry) and smoke_tests.queue_smoke_test(entry, actor=actor, release=release):
                entry.refresh_from_db()
        for run in entry.runs.filter(state=Run.State.WAITING):
            runs.queue_run(run, actor=actor, release=release)
    return list(entry.runs.all())


def check_permission(user: AbstractBaseUser | None, what: str, entry: Entry) -> None:
    if user is not None and (reason := permissions.explain_denial(user, what, entry)):
        raise IntakeError(reason)


def parse_budget(entry: Entry, budget: str) -> str:
    """Return the budget as runs have it; empty for the track's own. Raises IntakeError for more than that."""
    if not budget.strip() or budget.strip() == entry.track.budget:
        return ""
    try:
        asked, whole = Budget.parse(budget), Budget.parse(entry.track.budget)
    except ValueError as error:
        raise IntakeError(f"That is an {error}.") from None
    share = asked.share_of(whole)
    if share is None:
        raise IntakeError(f"The budget of {entry.track.name} is {whole}: name a part of it in the same unit.")
    if share > 1:
        raise IntakeError(f"{entry.track.name} has a budget of {whole}: an entry gets at most that.")
    if entry.runs.exists() and share < 1:
        raise IntakeError("It has a run already, whose budget stays as it is.")
    return str(asked) if share < 1 else ""


def set_impact(entry: Entry, impact: int, actor: str) -> None:
    """Give the entry its place within its priority; what of it waits moves with it."""
    if Entry.objects.filter(pk=entry.pk).exclude(impact=impact).update(impact=impact):
        entry.impact = impact
        Event.record(actor, entry, f"Its impact is {impact} now.")
        runs.update_job_impact(entry)


def reject_entry(entry: Entry, reason: str, user: AbstractBaseUser | None, *, actor: str = "") -> None:
    """Refuse the entry, with a reason that its author reads; its waiting runs are cancelled. `user`: see `approve`."""
    check_permission(user, "reject", entry)
    if not reason.strip():
        raise IntakeError("A rejection needs a reason: its author reads it.")
    actor = actor or (user.get_username() if user else SITE)
    close_entry(entry, Entry.State.REJECTED, reason.strip(), actor, [Entry.State.PROPOSED, Entry.State.SMOKE])


def withdraw_entry(entry: Entry, reason: str = "Withdrawn by its author.", actor: str = SITE) -> None:
    """Take the entry back; whatever of it waits or runs is cancelled."""
    close_entry(
        entry, Entry.State.WITHDRAWN, reason, actor, [Entry.State.PROPOSED, Entry.State.SMOKE, Entry.State.APPROVED]
    )


def reopen_entry(entry: Entry, reason: str, actor: str = SITE) -> bool:
    """Let a withdrawn entry wait for approval again, and for a smoke run if it had none to the end; return whether
    this call did."""
    decided = {"state": Entry.State.PROPOSED, "reason": "", "approved_by": None, "approved_at": None}
    smoke: dict[str, Any] = (
        {"smoke_job": None, "smoke": {}, "smoke_sentence": ""} if entry.smoke.get("passed") is None else {}
    )
    with transaction.atomic():
        opened = Entry.objects.filter(pk=entry.pk, state=Entry.State.WITHDRAWN).update(**decided, **smoke)
        if opened:
            Event.record(actor, entry, f"Entry proposed again: {reason}")
    entry.refresh_from_db()
    return opened == 1


def update_entry_text(entry: Entry, *, title: str, hypothesis: str, config: Mapping[str, Any]) -> bool:
    """Bring what an entry says of itself up to date while nobody has decided about it. Return whether what it
    trains with has changed. Once it is approved it stays as it was when the maintainer looked."""
    check_config(config)
    fields = {"title": title.strip()[:120] or entry.title, "hypothesis": hypothesis, "config": dict(config)}
    other_config = entry.config != fields["config"]
    if all(getattr(entry, name) == value for name, value in fields.items()):
        return False
    undecided = Entry.objects.filter(pk=entry.pk, state__in=[Entry.State.PROPOSED, Entry.State.SMOKE])
    reworded = undecided.update(**fields)
    entry.refresh_from_db()
    return bool(reworded) and other_config


def close_entry(entry: Entry, to: Entry.State, reason: str, actor: str, since: list[Entry.State]) -> None:
    with transaction.atomic():
        closed = Entry.objects.filter(pk=entry.pk, state__in=since).update(state=to, reason=reason[:500])
        entry.refresh_from_db()
        if not closed:
            if entry.state == to:
                return
            raise IntakeError(f"This entry is {entry.state}, so it cannot be {to}.")
        Event.record(actor, entry, f"Entry {to}: {reason}")
        Run.objects.filter(entry=entry).update(revision=F("revision") + 1)
        smoke_tests.cancel_smoke_test(entry, f"The entry was {to}: {reason}", actor)
        for run in entry.runs.filter(state__in=Run.UNFINISHED):
            runs.cancel_run(run, f"The entry was {to}: {reason}", actor)
