"""Matching: selects the next job of a node. Pure functions without a database.

Equal jobs form a `JobGroup`, so the cost depends on the number of groups, not of jobs.

The order: priority, impact, fewest idle GPUs, shorter duration, the author with less recent usage, age. Each
`LIFT_PERIOD` of waiting raises the priority by one step, without limit, so no job starves. Standing work of the site
never passes a nightly run: there is always more of it.

A node gets only jobs that fit its labels, GPUs, memory and disk and its owner's settings, and that reach their first
checkpoint while it is lent.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from heapq import merge
from itertools import count

LIFT_PERIOD = timedelta(hours=24)
"""Waiting time worth one priority step: a community run precedes the nightly after four days. An estimate."""
PRIORITY_STEP = 10
"""Distance between two priorities (`Job.Priority`)."""
STANDING_PRIORITY = 50
"""Priority of the site's standing work: ladder and monthly runs; packets have a lower one."""
NIGHTLY_PRIORITY = 10
"""Priority of a nightly run, which standing work does not reach."""
LEEWAY_SECONDS = 180.0
"""Seconds for downloads and uploads in addition to the job itself. An estimate."""
GB = 10**9
"""Decimal: a GPU sold with 24 GB has slightly more."""

NOTABLE_DISK_BYTES = 100 * GB
"""Disk needs from here on are mentioned in explanations."""

GPU_LABEL = re.compile(r"([1-9]\d{0,2})x(\d{1,4})gb")
DISK_LABEL = re.compile(r"(\d{1,6})gb")
MODEL_PREFIX = "model:"
"""Prefix of labels that name a language model of the node's rephrasing back end."""
PACKETS_KIND = "rephrase"
"""The rephrasing kind; a node runs it only if its owner allows it."""
SEAT_KIND = "seat"
"""The swarm worker's kind. It runs only the site's own code, so any node may run it."""
SELF_TEST_KIND = "self_test"
"""The kind of a slot's self-test. It is leased to that slot alone and never waits in the queue."""
MODEL_LABEL = re.compile(r"([1-9]\d{0,2})x(.+)")


@dataclass(frozen=True, kw_only=True)
class NodeSlot:
    """A slot of a node that requests work."""

    labels: frozenset[str]
    trusted: bool
    vetted: bool = False
    """Whether its results are accepted: it is trusted, or enough of them agreed with known ones."""
    sandboxed: bool
    """False where jobs run with the node's own rights."""
    disk_free_bytes: int
    """Free bytes of the disk space that the owner lends."""
    gpus: int = 0
    gpu_memory_bytes: int = 0
    """Memory of the smallest GPU."""
    memory_bytes: int = 0
    kinds: frozenset[str] | None = None
    """Job kinds that its agent supports; None: any."""
    serves: str = "everyone"
    """`Node.Serves`: everyone, core, or the track `serves_track` alone."""
    serves_track: str = ""
    packets: str = "never"
    """`Node.Packets`: whether it may rephrase, between runs or alone."""
    models: frozenset[str] | None = None
    """Language models of its back end; None: any."""
    campaign: str = ""
    """The only campaign that it rephrases for; empty: any."""
    swarm_run: int | None = None
    """The only run whose seats it takes; None: any."""
    seconds_left: float | None = None
    """Until its lending time ends; None if no end is near."""
    max_seconds: float | None = None
    """The owner's limit for one run."""
    node: int | None = None
    owner: int | None = None
    """User id; None for a node of the site."""


@dataclass(frozen=True, kw_only=True)
class JobGroup:
    """Jobs with equal needs and equal rank."""

    priority: int
    impact: int
    expected_seconds: float
    author: str
    needs_labels: tuple[str, ...]
    needs_trusted: bool
    needs_vetted: bool = False
    needs_sandbox: bool
    needs_disk_bytes: int
    needs_gpus: int = 0
    needs_gpu_memory_bytes: int = 0
    """On each of them."""
    needs_memory_bytes: int = 0
    track: str = ""
    from_core: bool = False
    checkpoint_seconds: float = 0.0
    """Until the first checkpoint and between two; 0: no checkpoints."""
    excluded_nodes: tuple[int, ...] = ()
    excluded_owners: tuple[int, ...] = ()
    kind: str = "train"
    waiting_since: datetime
    """Time at which the first job of the group was queued."""
    jobs: int = 1
    """Number of waiting jobs."""

    @property
    def min_seconds(self) -> float:
        """Seconds until the first checkpoint or the end."""
        return min(self.checkpoint_seconds or math.inf, self.expected_seconds)

    @cached_property
    def capabilities(self) -> LabelNeeds:
        """The needs of its labels and of its columns together."""
        parsed = parse_labels(self.needs_labels)
        memory = max(self.needs_gpu_memory_bytes, parsed.gpu_memory_bytes)
        disk = max(self.needs_disk_bytes, parsed.disk_bytes)
        return LabelNeeds(parsed.names, max(self.needs_gpus, parsed.gpus), memory, disk)

    @property
    def needs(self) -> tuple[object, ...]:
        """All fields that decide which nodes fit."""
        return (
            *(self.needs_labels, self.needs_trusted, self.needs_vetted, self.needs_sandbox, self.needs_disk_bytes),
            *(self.needs_gpus,),
            *(self.needs_gpu_memory_bytes, self.needs_memory_bytes, self.track, self.from_core, self.min_seconds),
            *(self.excluded_nodes, self.excluded_owners, self.kind),
        )


# --- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelNeeds:
    """Parsed labels of a job."""

    names: tuple[str, ...] = ()
    gpus: int = 0
    gpu_memory_bytes: int = 0
    disk_bytes: int = 0


@lru_cache(maxsize=4096)
def parse_labels(labels: tuple[str, ...]) -> LabelNeeds:
    """Parse labels: `2x24gb` is two GPUs of at least 24 GB, `500gb` is disk, any other label is a name."""
    names, gpus, gpu_memory, disk = [], 0, 0, 0
    for label in labels:
        if found := GPU_LABEL.fullmatch(label):
            gpus, gpu_memory = max(gpus, int(found[1])), max(gpu_memory, int(found[2]) * GB)
        elif found := DISK_LABEL.fullmatch(label):
            disk = max(disk, int(found[1]) * GB)
        else:
            names.append(label)
    return LabelNeeds(tuple(names), gpus, gpu_memory, disk)


def has_label(node: NodeSlot, name: str) -> bool:
    """Return whether the node has a label. `4x3090` includes `1x3090`, within the GPUs of the slot."""
    if name.startswith(MODEL_PREFIX):
        return node.models is None or name.removeprefix(MODEL_PREFIX) in node.models
    required = MODEL_LABEL.fullmatch(name)
    if required is None:
        return name in node.labels
    if int(required[1]) > node.gpus:
        return False
    owned = (MODEL_LABEL.fullmatch(label) for label in node.labels)
    return any(found and found[2] == required[2] and int(found[1]) >= int(required[1]) for found in owned)


# --- the order -------------------------------------------------------------------------------------------------------


Rank = tuple[int, int, int, float, datetime, str, float]
QueueEntry = tuple[Rank, int, JobGroup]
"""Rank, insertion number as the tie-breaker, group."""


class JobQueue:
    """The ranked groups, by their needs. Obstacles are checked once per set of needs."""

    def __init__(self, groups: Iterable[JobGroup], used: Mapping[str, float], now: datetime) -> None:
        """`used`: recent seconds of each author."""
        self._used = dict(used)
        self._now = now
        self._numbers = count()
        self._entries: defaultdict[tuple[object, ...], list[QueueEntry]] = defaultdict(list)
        for group in groups:
            self._entries[group.needs].append(self._build_entry(group))
        for entries in self._entries.values():
            entries.sort()

    def _build_entry(self, group: JobGroup) -> QueueEntry:
        return rank_group(group, self._used.get(group.author, 0.0), self._now), next(self._numbers), group

    def find_fitting(self, node: NodeSlot) -> Iterator[JobGroup]:
        """Yield the groups that fit the node, best first."""
        mine = (
            rank_for_slot(entries, count_idle_gpus(entries[0][2], node))
            for entries in self._entries.values()
            if entries and find_obstacle(entries[0][2], node) is None
        )
        return (group for _, _, group in merge(*mine))

    def take_job(self, group: JobGroup) -> None:
        """Remove a job of a group from the queue. It counts as usage of its author at once."""
        entries = self._entries[group.needs]
        del entries[next(index for index, entry in enumerate(entries) if entry[2] is group)]
        self._used[group.author] = self._used.get(group.author, 0.0) + group.expected_seconds
        if group.jobs > 1:
            insort(entries, self._build_entry(replace(group, jobs=group.jobs - 1)))

    def explain_idle(self, node: NodeSlot) -> str:
        """Return why the node gets no job, as a sentence for its owner."""
        fronts = [entries[0][2] for entries in self._entries.values() if entries]
        if not fronts:
            return "The queue is empty."
        obstacles = sorted({text for group in fronts if (text := find_obstacle(group, node)) is not None})
        if not obstacles:
            return "The waiting jobs go to other nodes."
        return f"The waiting jobs need a node {'; or one '.join(obstacles[:3])}."


def rank_for_slot(entries: Iterable[QueueEntry], idle: int) -> Iterator[tuple[tuple[object, ...], int, JobGroup]]:
    """Yield entries with the number of GPUs that they leave idle inserted into their rank."""
    for (lifted_priority, impact, *rest), number, group in entries:
        yield (lifted_priority, impact, idle, *rest), number, group


def count_idle_gpus(group: JobGroup, node: NodeSlot) -> int:
    return node.gpus - group.capabilities.gpus


def rank_group(group: JobGroup, used_seconds: float, now: datetime) -> Rank:
    """Return the rank of a group; lower goes first. The last two parts are tie-breakers."""
    duration_class = math.floor(math.log2(max(group.expected_seconds, 1.0)))  # each class is twice as long as the last
    rank = get_lifted_priority(group, now), -group.impact, duration_class, used_seconds, group.waiting_since
    return (*rank, group.author, group.expected_seconds)


def get_lifted_priority(group: JobGroup, now: datetime) -> int:
    """Return the priority as lifted by age."""
    lifted = group.priority - PRIORITY_STEP * max(0, math.floor((now - group.waiting_since) / LIFT_PERIOD))
    return max(lifted, NIGHTLY_PRIORITY + 1) if group.priority >= STANDING_PRIORITY else lifted


# --- obstacles -------------------------------------------------------------------------------------------------------


def find_obstacle(group: JobGroup, node: NodeSlot) -> str | None:
    """Return why the group does not fit the node, as the rest of a sentence ("waits for a node ..."), or None."""
    if node.kinds is not None and group.kind not in node.kinds:
        return (
            "that does more than take seats"
            if SEAT_KIND in node.kinds and "train" not in node.kinds
            else "whose agent is up to date"
        )
    if group.needs_trusted and not node.trusted:
        return "that is trusted to score"
    if group.needs_vetted and not node.vetted:
        return "whose results count: it is trusted, or enough of them agreed with others"
    if group.needs_sandbox and not node.sandboxed:
        return "with a sandbox"
    if node.node in group.excluded_nodes or node.owner in group.excluded_owners:
        return "that has not failed at this job, and is independent of the authors and of the result to check"
    return (
        find_capability_obstacle(group.capabilities, group.needs_memory_bytes, node)
        or find_owner_obstacle(group, node)
        or find_time_obstacle(group, node)
    )


def find_capability_obstacle(needed: LabelNeeds, memory_bytes: int, node: NodeSlot) -> str | None:
    if missing := sorted(name for name in needed.names if not has_label(node, name)):
        return f"labeled {', '.join(missing)}"
    if needed.gpus > node.gpus or needed.gpu_memory_bytes > node.gpu_memory_bytes:
        return describe_gpus(needed.gpus, needed.gpu_memory_bytes)
    if memory_bytes > node.memory_bytes:
        return f"with {format_gigabytes(memory_bytes)} of memory"
    lacks_disk = needed.disk_bytes > node.disk_free_bytes
    return f"with {format_gigabytes(needed.disk_bytes)} of free disk" if lacks_disk else None


def describe_needs(group: JobGroup) -> str:
    """Return what a node must have, as the rest of a sentence ("waits for a node ...")."""
    names, gpus, gpu_memory, disk = astuple(group.capabilities)
    parts = [
        describe_gpus(gpus, gpu_memory) if gpus or gpu_memory else "",
        f"labeled {', '.join(names)}" if names else "",
        f"with {format_gigabytes(group.needs_memory_bytes)} of memory" if group.needs_memory_bytes else "",
        f"with {format_gigabytes(disk)} of free disk" if disk >= NOTABLE_DISK_BYTES else "",
        "that is trusted to score" if group.needs_trusted else "",
        "whose results count" if group.needs_vetted and not group.needs_trusted else "",
        "that has not failed at it or had a part in it" if group.excluded_nodes else "",
    ]
    return " and ".join(part for part in parts if part) or "that fits"


def describe_gpus(gpus: int, memory_bytes: int) -> str:
    of = f" of {format_gigabytes(memory_bytes)}" if memory_bytes else ""
    return f"with {gpus} GPUs{of}" if gpus > 1 else f"with a GPU{of}"


def format_gigabytes(size: int) -> str:
    return f"{size / GB:.0f} GB"


def find_owner_obstacle(group: JobGroup, node: NodeSlot) -> str | None:
    """Return which of the owner's settings excludes the group."""
    if group.kind == PACKETS_KIND and node.packets == "never":
        return "whose owner lets it rephrase"
    if group.kind == PACKETS_KIND and node.campaign and group.track != f"{PACKETS_KIND}:{node.campaign}":
        return "that rephrases for this campaign too"
    if group.kind == SEAT_KIND and node.swarm_run is not None and group.track != format_swarm_track(node.swarm_run):
        return "that takes seats of this run too"
    if group.kind not in (PACKETS_KIND, SEAT_KIND) and node.packets == "only":
        return "that does more than rephrase"
    if group.kind == PACKETS_KIND:
        return None
    if node.serves == "core" and not group.from_core:
        return "whose owner lends it to everyone"
    if node.serves == "track" and node.serves_track != group.track:
        return "whose owner lends it to more than one track"
    return None


def format_swarm_track(run: int) -> str:
    """Return `Job.track` of a swarm run's seats."""
    return f"swarm:{run}"


def find_time_obstacle(group: JobGroup, node: NodeSlot) -> str | None:
    """Return the time that the group needs if the node's lending time ends before its first checkpoint."""
    left = min((seconds for seconds in (node.seconds_left, node.max_seconds) if seconds is not None), default=math.inf)
    needed = group.min_seconds + LEEWAY_SECONDS
    return f"that is free for {math.ceil(needed / 60)} minutes at a stretch" if needed > left else None
