"""The oracle of the test with faults: the invariants of a site after all work is done.

1.  Each pull request has one entry, one run, one smoke test, one training job and one score job (and perhaps a
    replay), and all of them ended well. GitHub shows one comment, one green check and one reaction to the command.
2.  Each job has exactly one lease with an accepted result. No lease is active. `attempts` counts the leases.
3.  Each run has each step of its curve once, with the values that were sent, and was scored once.
4.  Credit is the sum of the seconds of leases, and no lease has more seconds than its node reported.
5.  Logs have no gap and no overlap. Each file has the bytes of its hash. No unfinished upload is left.
6.  No webhook is left, and none has failed. The outbox is empty.
7.  On the Hub each run has one repository. It has each version of the description once (a result that arrives after
    the weights makes another), always with the same weights, and the last commit is the one that the site has recorded.
8.  No request of a node got a response with status 500 or an error that blames the client.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.support.faulty_node import STEPS
from tests.support.site_with_faults import REPOSITORY_NAME, SiteWithFaults


def find_violations(site: SiteWithFaults, site_state: dict[str, Any]) -> list[str]:
    """Return a sentence for each violated invariant. `site_state` is the result of `site_programs.faults.read_site`."""
    checks = (
        check_work,
        check_leases,
        check_curves,
        check_credit,
        check_files,
        check_messages,
        check_github,
        check_hub,
    )
    violations = [violation for check in checks for violation in check(site, site_state)]
    return violations + [problem for node in site.nodes for problem in node.problems]


def check_work(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    if Counter(entry["sha"] for entry in site_state["entries"]) != Counter(site.shas):
        yield f"the entries are not those of the pull requests: {site_state['entries']}"
    yield from (f"entry {entry}" for entry in site_state["entries"] if entry["state"] != "approved")
    if Counter(run["entry__sha"] for run in site_state["runs"]) != Counter(site.shas):
        yield f"the runs are not those of the pull requests: {site_state['runs']}"
    yield from (f"run {run}" for run in site_state["runs"] if run["state"] != "finished")
    kinds = Counter(job["kind"] for job in site_state["jobs"] if job["kind"] != "replay")
    if kinds != dict.fromkeys(("smoke", "train", "score"), len(site.shas)):
        yield f"there are jobs of these kinds: {kinds}"
    yield from (f"job {job}" for job in site_state["jobs"] if job["state"] != "done")
    scored = Counter(target for (target,) in site_state["scored"])
    yield from (
        f"run {run['id']} was scored {scored[run['id']]} times" for run in site_state["runs"] if scored[run["id"]] != 1
    )


def check_leases(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    by_job: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for lease in site_state["leases"]:
        by_job[lease["job"]].append(lease)
    for job in site_state["jobs"]:
        accepted = [lease["id"] for lease in by_job[job["id"]] if lease["outcome"] == "done"]
        if len(accepted) != 1:
            yield f"job {job['id']} has {len(accepted)} accepted results: {accepted}"
        if job["attempts"] != len(by_job[job["id"]]):
            yield f"job {job['id']} counts {job['attempts']} attempts, and has {len(by_job[job['id']])} leases"
    yield from (f"lease {lease['id']} is active" for lease in site_state["leases"] if lease["state"] == "active")


def check_curves(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    curves: dict[int, list[tuple[str, int, float]]] = defaultdict(list)
    for run, series, step, loss in site_state["points"]:
        curves[run].append((series, step, loss))
    for run in site_state["runs"]:
        if curves[run["id"]] != [("train", step, 10 / step) for step in range(1, STEPS + 1)]:
            yield f"the curve of run {run['id']}: {curves[run['id']]}"


def check_credit(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    reported = {lease: seconds for node in site.nodes for lease, seconds in node.reported.items()}
    lease_seconds: dict[str, float] = defaultdict(float)
    for lease in site_state["leases"]:
        lease_seconds[str(lease["node"])] += 0.0 if lease["machine_fault"] else lease["seconds"]
        if lease["seconds"] > reported.get(lease["id"], 0.0):
            yield f"lease {lease['id']}: {lease['seconds']} s credited, {reported.get(lease['id'])} s reported"
    credited = site_state["credited"]
    for node in lease_seconds.keys() | credited.keys():
        if abs(lease_seconds[node] - credited.get(node, 0.0)) > 1e-6 * max(lease_seconds[node], 1.0):
            yield f"node {node}: {credited.get(node)} s credited, its leases have {lease_seconds[node]} s"


def check_files(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    ends: dict[int, int] = defaultdict(int)
    for lease, offset, length in site_state["logs"]:
        if offset != ends[lease]:
            yield f"the log of lease {lease} continues at {offset}, after {ends[lease]} bytes"
        ends[lease] = offset + length
    for lease in site_state["leases"]:
        if ends[lease["id"]] != lease["log_received"]:
            yield f"the log of lease {lease['id']} has {ends[lease['id']]} bytes of {lease['log_received']}"
    yield from (f"file {sha256} is damaged or lost" for sha256 in site_state["damaged"])
    if site_state["partials"]:
        yield f"unfinished uploads of the leases {site_state['partials']} are left"


def check_messages(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    yield from (f"outbox: {message}" for message in site_state["outbox"])


def check_github(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    repository = site.github.get_or_create_repository(REPOSITORY_NAME)
    for number, sha in enumerate(site.shas, start=1):
        comments = [row for row in repository.list_comments_on(number) if row["user"]["login"].endswith("[bot]")]
        if len(comments) != 1 or "2.5000 bits per byte" not in comments[0]["body"]:
            yield f"pull request {number} has the comments {[row['body'] for row in comments]}"
        checks = [
            (row["status"], row.get("conclusion")) for row in repository.checks.values() if row["head_sha"] == sha
        ]
        if checks != [("completed", "success")]:
            yield f"pull request {number} has the checks {checks}"
    reactions = Counter(comment for comment, _ in repository.reactions)
    commands = [row["id"] for row in repository.comments.values() if row["body"] == "/approve"]
    if reactions != dict.fromkeys(commands, 1):
        yield f"reactions to the {len(commands)} commands: {repository.reactions}"


def check_hub(site: SiteWithFaults, site_state: dict[str, Any]) -> Iterator[str]:
    if sorted(run for run, _, _ in site_state["publications"]) != sorted(run["id"] for run in site_state["runs"]):
        yield f"published: {site_state['publications']}"
    if len(site.hub.repositories) != len(site_state["runs"]):
        yield f"the Hub has the repositories {sorted(site.hub.repositories)}"
    for run, published_commit, name in site_state["publications"]:
        repository = site.hub.repositories.get(name)
        commits = repository.commits[1:] if repository else []
        if not commits or commits[-1].id != published_commit:
            commit_ids = [commit.id for commit in commits]
            yield f"run {run}: the Hub has the commits {commit_ids} in {name}, recorded is {published_commit}"
        if len({commit.message for commit in commits}) < len(commits):
            yield f"run {run}: the Hub has a version twice: {[commit.message for commit in commits]}"
        if any(get_weights(commit.files) != get_weights(commits[0].files) for commit in commits):
            yield f"run {run}: the weights on the Hub have changed"


def get_weights(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if path.endswith(".safetensors")}
