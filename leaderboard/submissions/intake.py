"""Entries: submit a commit as an entry, then approve, reject, withdraw or reopen it."""

from __future__ import annotations

import ast
import json
import lzma
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from leaderboard import caps, graphs, permissions, run_jobs, runs
from leaderboard.models import Entry, PullRequest, Run, Season, Track
from leaderboard.models.entries import web_address
from leaderboard.submissions import notebook_series, repositories, smoke_tests
from leaderboard.submissions.notebook_cells import NotebookError
from leaderboard.submissions.notebook_series import Series
from leaderboard.submissions.repositories import MODELS, Mirror, RepositoryError
from scheduler import storage
from scheduler.models import SITE_ACTOR, Event
from scheduler.transitions import transition
from trainer.accounting.budget import Budget
from trainer.text_files import decode_text

DICTIONARY, CONTRACT = f"{MODELS}__init__.py", f"{MODELS}base.py"
DICTS = ("ARCHITECTURES", "PRESETS")  # what an architecture entry may change in the dictionary's file
# What an entry may set in a run's configuration (None: any name). The track sets budget, seed, data and systems.
ALLOWED_SECTIONS: dict[str, frozenset[str] | None] = {
    "model": None,
    "recipe": None,
    "train": frozenset({"batch"}),
}
CONFIG_LENGTH = 10_000
OPTION_NAME = re.compile(r"[A-Za-z0-9_-]+")
UNDECIDED_STATES = (Entry.State.PROPOSED, Entry.State.SMOKE)


class IntakeError(ValueError):
    """The entry cannot be submitted or changed; the message is for the user."""


@dataclass(frozen=True)
class CommitSummary:
    """What an entry needs of a commit. Read it outside of transactions: git is slow.

    `presets`: architectures at a fixed size, of its dict PRESETS. `changes_contract`: code that all architectures share
    differs from main's. `source_bytes`: see `measure_source`.
    """

    repository: str
    sha: str
    author: str
    subject: str
    base_sha: str
    changed_files: list[str]
    bundle: bytes
    architectures: dict[str, str]
    presets: tuple[str, ...] = ()
    changes_contract: bool = False
    source_bytes: int = 0

    @property
    def kind(self) -> Entry.Kind:
        inside = [path for path in self.changed_files if path.startswith(MODELS)]
        if notebook_series.find_series_names(self.changed_files) and not inside:
            return Entry.Kind.NOTEBOOK
        outside = [path for path in self.changed_files if not path.startswith(MODELS)]
        is_open = outside or self.changes_contract or not self.base_sha
        return Entry.Kind.OPEN if is_open else Entry.Kind.ARCHITECTURE

    def changed_architecture(self) -> str:
        """Return the only architecture whose file differs from main's, or the first of the dict."""
        changed = []
        for name, module in self.architectures.items():
            path = module.replace(".", "/")
            if any(file == f"{path}.py" or file.startswith(f"{path}/") for file in self.changed_files):
                changed.append(name)
        if len(changed) > 1:
            raise IntakeError(f"The commit changes {' and '.join(changed)}. Choose one of them.")
        return changed[0] if changed else next(iter(self.architectures))


def fetch_commit(repository: str, revision: str) -> CommitSummary:
    """Fetch the repository and read a commit. Raise IntakeError if it cannot be an entry."""
    try:
        source = repositories.open_mirror(repository)
        source.fetch()
        source.fetch_main()
        return summarize_commit(source, source.resolve_revision(revision))
    except RepositoryError as error:
        raise IntakeError(str(error)) from error


def summarize_commit(source: Mirror, sha: str) -> CommitSummary:
    sources = source.read_model_files(sha)
    base = source.find_merge_base(sha)
    before = {} if base is None else source.read_model_files(base)
    author, subject = source.read_author_and_subject(sha)
    return CommitSummary(
        repository=source.address,
        sha=sha,
        author=author,
        subject=subject,
        base_sha=base or "",
        changed_files=source.list_changed_files(sha, base),
        bundle=repositories.pack_bundle(sources),
        architectures=parse_architectures(sources),
        presets=parse_presets(sources),
        changes_contract=base is not None and changes_contract(sources, before),
        source_bytes=measure_source(sources, before),
    )


def measure_source(sources: Mapping[str, bytes], before: Mapping[str, bytes]) -> int:
    """Return how many bytes changed files add to main's files, compressed together."""
    known = b"".join(before[path] for path in sorted(before))
    changed = b"".join(sources[path] for path in sorted(sources) if sources[path] != before.get(path))
    return max(len(lzma.compress(known + changed)) - len(lzma.compress(known)), 0)


def changes_contract(sources: Mapping[str, bytes], before: Mapping[str, bytes]) -> bool:
    """Whether the contract's file differs, or anything in the dictionary's file except its dicts."""
    if sources.get(CONTRACT) != before.get(CONTRACT):
        return True
    return DICTIONARY not in before or dump_without_dicts(sources[DICTIONARY]) != dump_without_dicts(before[DICTIONARY])


def dump_without_dicts(source: bytes) -> str:
    """Return the syntax tree of valid source, without the values of `DICTS`."""
    tree = parse_dictionary(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in DICTS:
            is_plain = all(
                isinstance(part, ast.Constant | ast.Tuple | ast.Dict | ast.expr_context)
                for part in ast.walk(node.value)
            )
            node.value = ast.Constant(None) if is_plain else node.value
    try:
        return ast.dump(tree)
    except RecursionError:
        raise IntakeError(f"{DICTIONARY} has an expression that is nested too deeply.") from None


def parse_dictionary(source: bytes) -> ast.Module:
    """Return the syntax tree of the dictionary's file. Raises IntakeError."""
    try:
        return ast.parse(decode_text(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise IntakeError(f"{DICTIONARY} is not valid Python.") from None


def parse_architectures(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the ARCHITECTURES dict of a commit. It is parsed, never imported."""
    if DICTIONARY not in sources:
        raise IntakeError(f"The commit has no {DICTIONARY}, which names its architectures.")
    for node in parse_dictionary(sources[DICTIONARY]).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "ARCHITECTURES" for target in targets):
            return check_architectures(getattr(node, "value", None), sources)
    raise IntakeError(f"{DICTIONARY} has no dict named ARCHITECTURES.")


def parse_presets(sources: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the names in the PRESETS dict of a commit that has ARCHITECTURES; () if it is missing or not plain."""
    for node in parse_dictionary(sources[DICTIONARY]).body:
        names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        if names == ["PRESETS"] and isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return tuple(key for key in keys if isinstance(key, str))
    return ()


def check_architectures(node: ast.expr | None, sources: Mapping[str, bytes]) -> dict[str, str]:
    architectures: Any = None
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        architectures = ast.literal_eval(node) if node is not None else None
    is_dict = isinstance(architectures, dict) and bool(architectures)
    if not is_dict or not all(isinstance(text, str) for pair in architectures.items() for text in pair):
        raise IntakeError(f'ARCHITECTURES in {DICTIONARY} must be a plain dict: {{"name": "trainer.models.file"}}.')
    for name, module in architectures.items():
        path = module.replace(".", "/")
        has_file = f"{path}.py" in sources or f"{path}/__init__.py" in sources
        if not has_file or not re.fullmatch(r"trainer\.models(\.\w+)+", module):
            raise IntakeError(f"ARCHITECTURES names {module} for {name}, and the commit has no such file in {MODELS}")
    return dict(architectures)


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
    variant: str = "",
    based_on: int | None = None,
    kind: Entry.Kind | None = None,
    requested_by: AbstractBaseUser | None = None,
    pull_request: PullRequest | None = None,
    actor: str = SITE_ACTOR,
    skips_stations: bool = False,
) -> Entry:
    """Return the entry of a commit, architecture, track and variant, which is created if it is new. `sha` may be a
    branch.

    A traced architecture starts on the first track of the chain, unless it is on one already or `skips_stations`.
    An empty `architecture` means the one whose file the commit changes. A commit that changes notebooks and no
    architecture is a notebook entry; its `architecture` is the notebook's name. Raises IntakeError.
    """
    if track.kind == Track.Kind.PLAYGROUND and not hypothesis.strip():
        raise IntakeError(f"{track.name} needs a hypothesis: what do you expect to see, and why?")
    check_config(config or {})
    if variant == Entry.MAIN_VARIANT:
        raise IntakeError(f"The variant {variant!r} is for main itself. Choose another one.")
    commit = fetch_commit(repository, sha)
    check_ancestor(based_on, commit.sha)
    if track.kind == Track.Kind.SWARM and (commit.changed_files or not commit.base_sha):
        limits = f"{track.name} trains on volunteers' machines, which run code from main only"
        raise IntakeError(f"{limits}: enter an architecture that is on main, without changes.")
    kind = kind or commit.kind
    notebooks: list[dict[str, Any]] = []
    if kind == Entry.Kind.NOTEBOOK:
        series = read_notebooks(commit, architecture, track)
        commit, architecture = replace(commit, bundle=series.bundle), series.name
        notebooks = [part.model_dump() for part in series.parts]
    else:
        architecture = choose_architecture(commit, architecture)
        if kind == Entry.Kind.ARCHITECTURE and not skips_stations:
            track = choose_station(commit, architecture, variant, track)
        check_size(track, architecture, config or {})
    if url and not web_address(url):
        raise IntakeError(f"The address {url!r} must begin with https:// or http://.")
    excess = caps.explain_source_excess(track.season, commit.source_bytes)
    if excess and track.is_traced and kind == Entry.Kind.ARCHITECTURE:
        raise IntakeError(excess)
    return store_entry(
        commit,
        architecture,
        track,
        variant,
        actor=actor,
        kind=kind,
        title=title.strip()[:120] or f"{architecture} at {commit.sha[:8]}",
        author=(author or commit.author)[:120],
        hypothesis=hypothesis,
        url=url,
        config=dict(config or {}),
        based_on_id=based_on,
        notebooks=notebooks,
        requested_by=requested_by,
        pull_request=pull_request,
    )


def choose_architecture(commit: CommitSummary, requested: str) -> str:
    architecture = requested or commit.changed_architecture()
    if architecture not in {*commit.architectures, *commit.presets}:
        known = ", ".join(sorted({*commit.architectures, *commit.presets})) or "none"
        raise IntakeError(f"The commit has no architecture {architecture!r}; it has {known}.")
    return architecture


def choose_station(commit: CommitSummary, architecture: str, variant: str, track: Track) -> Track:
    """Return the first track of the chain, or the first one that the entry is on: the chain may be younger."""
    way = [*track.list_earlier(), track]
    entered = Entry.objects.filter(
        repository=commit.repository, sha=commit.sha, architecture=architecture, variant=variant, track__in=way
    ).values_list("track", flat=True)
    return next((station for station in way if station.pk in entered), way[0])


def check_size(track: Track, architecture: str, config: Mapping[str, Any]) -> None:
    """Raise IntakeError if the track's GPUs cannot hold the model."""
    arch = {"arch": run_jobs.get_trained_architecture(track.config, architecture)}
    if excess := track.explain_size_excess(run_jobs.merge_configs(track.config, config, arch)):
        raise IntakeError(f"{track.name}: {excess}")


def read_notebooks(commit: CommitSummary, requested: str, track: Track) -> Series:
    """Return the notebooks of a commit to run. They have no score, so competition tracks refuse them."""
    if track.kind == Track.Kind.COMPETITION:
        raise IntakeError(f"Notebooks run on community and playground tracks; {track.name} compares architectures.")
    try:
        name = notebook_series.choose_series(commit.changed_files, requested)
        return notebook_series.read_series(repositories.open_mirror(commit.repository), commit.sha, name)
    except (NotebookError, RepositoryError) as error:
        raise IntakeError(str(error)) from error


def store_entry(
    commit: CommitSummary, architecture: str, track: Track, variant: str = "", *, actor: str, **fields: Any
) -> Entry:
    bundle = storage.store_bytes(commit.bundle)
    with transaction.atomic():
        entry, created = Entry.objects.get_or_create(
            repository=commit.repository,
            sha=commit.sha,
            architecture=architecture,
            track=track,
            variant=variant,
            defaults={
                **fields,
                "bundle": bundle,
                "base_sha": commit.base_sha,
                "source_bytes": commit.source_bytes,
                "changed_files": commit.changed_files[: repositories.LISTED_FILES],
            },
        )
        if created:
            message = f"{entry.title}: commit {entry.sha[:8]} entered for {track.name} ({entry.kind})."
            Event.record(actor, entry, message)
    return entry


def check_ancestor(number: int | None, sha: str, before: int | None = None) -> None:
    """Raise IntakeError unless an entry builds on nothing, or on an earlier entry of another commit."""
    if number is None:
        return
    found = Entry.objects.filter(pk=number).first()
    if found is None:
        raise IntakeError(f"based_on: there is no entry {number} here. Its number is in the address of its page.")
    if found.sha == sha or (before is not None and number >= before):
        raise IntakeError(f"based_on: entry {number} is not an earlier entry of another commit.")


def check_config(config: Mapping[str, Any]) -> None:
    for section, values in config.items():
        if section not in ALLOWED_SECTIONS:
            allowed_sections = " and ".join(ALLOWED_SECTIONS)
            raise IntakeError(f"An entry cannot set {section!r} of the configuration, only {allowed_sections}.")
        if not isinstance(values, Mapping):
            raise IntakeError(f"The section {section!r} of the configuration must be a table of names and values.")
        allowed = ALLOWED_SECTIONS[section]
        if allowed is not None and (other := sorted(set(values) - allowed)):
            raise IntakeError(f"An entry cannot set {section}.{other[0]}: the track fixes it.")
        check_names(values)
    for name, value in config.get("train", {}).items():
        if type(value) is not int or value < 1:  # the trainer also reads strings such as "0x8", the site does not
            raise IntakeError(f"train.{name} must be a whole number from 1 on, without quotes.")
    if len(json.dumps(config)) > CONFIG_LENGTH:
        raise IntakeError("The entry's configuration is too long.")


def check_names(table: Mapping[str, Any]) -> None:
    for name, value in table.items():
        if not OPTION_NAME.fullmatch(name):
            raise IntakeError(f"The configuration has an option {name!r}: names have letters, digits, - and _ only.")
        if isinstance(value, Mapping):
            check_names(value)


def approve_entry(
    entry: Entry,
    sha: str,
    user: AbstractBaseUser | None,
    *,
    message: str = "",
    actor: str = "",
    budget: str = "",
    impact: int | None = None,
) -> list[Run]:
    """Approve exactly this commit, queue its run, and return the entry's runs. Idempotent.

    `sha` is the commit that the maintainer reviewed; any other is refused. `user` is None for the site itself, and for
    a maintainer on GitHub without an account here; then the caller has checked the permission and sets `actor`.
    `budget`: a smaller one than the track's, for the first run. Raises IntakeError.
    """
    check_permission(user, "approve", entry)
    if sha != entry.sha:
        raise IntakeError(f"You reviewed {sha[:8]}, but this entry is {entry.sha[:8]}. Review and approve that commit.")
    if entry.bundle_id is None:
        raise IntakeError("This entry has no files to run.")
    budget = parse_budget(entry, budget)
    actor = actor or (user.get_username() if user else SITE_ACTOR)
    release = storage.store_release()
    with transaction.atomic():
        runs.lock_jobs(entry)
        graphs.lock_season(entry.track.season_id)
        is_approved_now = transition(
            entry,
            Entry.State.APPROVED,
            since=UNDECIDED_STATES,
            where=Q(sha=sha),
            actor=actor,
            message=message or f"Commit {sha[:8]} approved{f', with a budget of {budget}' if budget else ''}.",
            approved_by=user,
            approved_at=timezone.now(),
            reason="",
            obstacle="",
            waits_for=None,
        )
        entry.refresh_from_db()
        if entry.state != Entry.State.APPROVED:
            raise IntakeError(f"This entry is {entry.state}, so it cannot be approved.")
        if is_approved_now:
            if impact is not None:
                set_impact(entry, impact, actor)
            # A reopened entry gets a new run: cancelled runs stay cancelled.
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
    """Return the normalized budget, or "" for the track's. Raise IntakeError if it exceeds the track's."""
    if not budget.strip() or budget.strip() == entry.track.budget:
        return ""
    try:
        requested, full = Budget.parse(budget), Budget.parse(entry.track.budget)
    except ValueError as error:
        raise IntakeError(f"That is an {error}.") from None
    share = requested.share_of(full)
    if share is None:
        raise IntakeError(f"The budget of {entry.track.name} is {full}: use a part of it, in the same unit.")
    if share > 1:
        raise IntakeError(f"{entry.track.name} has a budget of {full}, which is the most that an entry gets.")
    if entry.runs.exists() and share < 1:
        raise IntakeError("The entry already has a run, whose budget cannot change.")
    return str(requested) if share < 1 else ""


def set_impact(entry: Entry, impact: int, actor: str) -> None:
    """Set the entry's rank within its priority, also of its waiting jobs."""
    with transaction.atomic():
        runs.lock_jobs(entry)
        if Entry.objects.filter(pk=entry.pk).exclude(impact=impact).update(impact=impact):
            entry.impact = impact
            Event.record(actor, entry, f"Its impact is now {impact}.")
            runs.update_job_impact(entry)


def reject_entry(entry: Entry, reason: str, user: AbstractBaseUser | None, *, actor: str = "") -> None:
    """Reject the entry and cancel its waiting runs. `user`: see `approve_entry`."""
    check_permission(user, "reject", entry)
    if not reason.strip():
        raise IntakeError("A rejection needs a reason for the author.")
    actor = actor or (user.get_username() if user else SITE_ACTOR)
    close_entry(entry, Entry.State.REJECTED, reason.strip(), actor, UNDECIDED_STATES)


def withdraw_entry(entry: Entry, reason: str = "Withdrawn by its author.", actor: str = SITE_ACTOR) -> None:
    """Withdraw the entry and cancel its unfinished runs. Raise IntakeError for the baseline of a season.

    A maintainer decides about that first: the nights and the ladder depend on it.
    """
    if season := Season.objects.filter(baseline=entry).order_by("-active").first():
        sentence = f"Not withdrawn ({reason.rstrip('.')}): it is the baseline of {season}. A maintainer decides."
        last = Event.objects.about(entry).order_by("pk").last()
        if last is None or last.sentence != sentence:
            Event.record(actor, entry, sentence)
        raise IntakeError(
            f"It is the baseline of {season}, on which the nights and the ladder depend. A maintainer first chooses "
            "another baseline in the admin."
        )
    close_entry(entry, Entry.State.WITHDRAWN, reason, actor, (*UNDECIDED_STATES, Entry.State.APPROVED))


def reopen_entry(entry: Entry, reason: str, actor: str = SITE_ACTOR) -> bool:
    """Let a withdrawn entry wait for approval again, and for a smoke test without a result; return whether it did."""
    fields: dict[str, Any] = {"reason": "", "approved_by": None, "approved_at": None}
    if entry.smoke.get("passed") is None:
        fields |= {"smoke_job": None, "smoke": {}, "smoke_sentence": ""}
    fields["message"] = f"Entry proposed again: {reason}"
    return transition(entry, Entry.State.PROPOSED, since=[Entry.State.WITHDRAWN], actor=actor, **fields)


def update_entry_text(entry: Entry, *, title: str, hypothesis: str, config: Mapping[str, Any]) -> bool:
    """Update an undecided entry's texts and configuration; return whether the configuration has changed.

    An approved entry stays as the maintainer reviewed it.
    """
    check_config(config)
    texts = {"title": title.strip()[:120] or entry.title, "hypothesis": hypothesis}
    fields: dict[str, Any] = {**texts, "config": dict(config)}
    has_new_config = entry.config != fields["config"]
    if all(getattr(entry, name) == value for name, value in fields.items()):
        return False
    updated = Entry.objects.filter(pk=entry.pk, state__in=UNDECIDED_STATES).update(**fields)
    entry.refresh_from_db()
    return bool(updated) and has_new_config


def close_entry(entry: Entry, to: Entry.State, reason: str, actor: str, since: Collection[str]) -> None:
    with transaction.atomic():
        runs.lock_jobs(entry)
        graphs.lock_season(entry.track.season_id)
        message = f"Entry {to}: {reason}"
        if not transition(entry, to, since=since, actor=actor, message=message, reason=reason[:500], waits_for=None):
            if entry.state == to:
                return
            raise IntakeError(f"This entry is {entry.state}, so it cannot be {to}.")
        entry.refresh_from_db()  # the caller's row may lack a newer smoke test
        Run.objects.filter(entry=entry).update(revision=F("revision") + 1)
        smoke_tests.cancel_smoke_test(entry, f"The entry was {to}: {reason}", actor)
        for run in entry.runs.filter(state__in=Run.UNFINISHED):
            runs.cancel_run(run, f"The entry was {to}: {reason}", actor)
