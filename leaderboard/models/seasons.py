"""Seasons: what is frozen so that results compare, and the files of their datasets.

A season's test text is drawn with its secret from the test split, the documents that training never gets. Trusted nodes
get the secret with a score's order; it is published when the season has ended (`leaderboard.publishing.test_secrets`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.field_checks import check_field, is_number
from leaderboard.recomputation import request_recomputation
from scheduler.models import Blob
from trainer import protocol
from trainer.data.corpora import find_corpus
from trainer.data.tokenizer_names import check_tokenizer_name
from trainer.graph.files import MAX_CONSTANT_BYTES
from trainer.scoring import benchmark_tasks

MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
"""Files of a dataset."""
TEST_TOKENS = 2_000_000
"""The test split is 1 % of the text without a limit: 120 million tokens in a season of 12 billion."""
MIN_RESERVED_TOKENS = 20_000_000
"""Smallest test split that an entry cannot know: 8,000 bytes hold pairs of context and token for 0.01 % of it."""
CAPS = ("parameters", "stored_bytes", "constant_bytes", "source_bytes", "scoring_flops")


class SeasonDict(TypedDict):
    """What its runs are trained and scored on."""

    name: str
    started_at: str
    corpus: str
    tokenizer: str
    limit_bytes: int | None
    dataset_hash: str
    test_tokens: int  # scored, at most
    reserved_tokens: int | None  # of the test split, from which they are drawn
    has_open_test: bool  # whether an entry could know a part of the test text that matters
    commitment: str  # SHA-256 of the secret; empty: the draw is public
    secret: str  # draws the scored sample (`dailytrain draw`); empty until the season has ended


class SeasonQuerySet(models.QuerySet["Season"]):
    def current(self) -> Season | None:
        """Return the season of new tracks."""
        return self.filter(active=True).order_by("-started_at").first()


def build_caps() -> dict[str, float]:
    """Return the caps of a new season."""
    return {"constant_bytes": MAX_CONSTANT_BYTES, "source_bytes": 20_000, "scoring_flops": 4}


def draw_secret() -> str:
    """Return the secret of a new season."""
    return secrets.token_hex(32)


class Season(models.Model):
    """The dataset, tokenizer, baseline and environment that are fixed so that results are comparable."""

    name = models.CharField(max_length=80, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    active = models.BooleanField(default=True)
    corpus = models.CharField(max_length=200)
    tokenizer = models.CharField(max_length=200)
    limit_bytes = models.BigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    dataset_hash = models.CharField(max_length=64, blank=True, help_text="Empty until the dataset is prepared.")
    vocabulary_size = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens of the prepared dataset's vocabulary."
    )
    caps = models.JSONField(
        default=build_caps,
        blank=True,
        help_text="Limits of traced entries: parameters, stored_bytes, constant_bytes, source_bytes (compressed, "
        "beyond main's own files), scoring_flops (per token, times the baseline's). A missing one is no limit.",
    )
    test_tokens = models.PositiveIntegerField(
        default=TEST_TOKENS,
        validators=[MinValueValidator(1), MaxValueValidator(2**31 - 1)],
        help_text="Tokens of the test split that are scored, a fixed uniform sample of its documents. Fixed from the "
        "first score on, since scores of different samples do not compare.",
    )
    test_secret = models.CharField(
        max_length=64,
        blank=True,
        default=draw_secret,
        db_default="",
        editable=False,
        help_text="Draws the scored sample from the test split. Empty: a season of before, whose order is public.",
    )
    secret_published_at = models.DateTimeField(null=True, blank=True, editable=False)
    reserved_tokens = models.BigIntegerField(
        null=True, blank=True, editable=False, help_text="Tokens of the test split; null until it is prepared."
    )
    baseline = models.ForeignKey(
        "Entry", null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="A pinned commit."
    )

    objects = SeasonQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        for track_id in self.tracks.values_list("pk", flat=True):
            request_recomputation(track_id)

    def clean(self) -> None:
        known = isinstance(self.caps, dict) and set(self.caps) <= set(CAPS)
        if not known or not all(is_number(cap) and cap > 0 for cap in self.caps.values()):
            raise ValidationError({"caps": f"A table of numbers above 0 by name: {', '.join(CAPS)}."})
        self.check_test_tokens()
        if not self.is_prepared:
            check_field("corpus", find_corpus, self.corpus)
            check_field("tokenizer", check_tokenizer_name, self.tokenizer)

    def check_test_tokens(self) -> None:
        """Raise ValidationError if runs were scored on another sample."""
        changed = Season.objects.filter(pk=self.pk).exclude(test_tokens=self.test_tokens)
        if changed.filter(runs__bits_per_byte__isnull=False).exists():
            raise ValidationError(
                {"test_tokens": "Runs of this season are scored, so it cannot change. Create a new season."}
            )

    @property
    def is_prepared(self) -> bool:
        return bool(self.dataset_hash)

    @property
    def commitment(self) -> str:
        """SHA-256 of the secret, public from the first day; empty without a secret."""
        return hashlib.sha256(bytes.fromhex(self.test_secret)).hexdigest() if self.test_secret else ""

    @property
    def published_secret(self) -> str:
        """The secret, once the season has ended."""
        return self.test_secret if self.secret_published_at else ""

    @property
    def has_open_test(self) -> bool:
        """Whether an entry could know a part of the test text that matters."""
        return not self.test_secret or (self.reserved_tokens or 0) < MIN_RESERVED_TOKENS

    @property
    def is_stored(self) -> bool:
        """Whether nodes can download the dataset. Its manifest is stored last."""
        return self.files.filter(kind=SeasonFile.Kind.DATASET, path=MANIFEST).exists()

    def to_dict(self) -> SeasonDict:
        computed = {name: getattr(self, name) for name in ("reserved_tokens", "has_open_test", "commitment")}
        started_at = self.started_at.isoformat()
        return build_dict(self, SeasonDict, **computed, started_at=started_at, secret=self.published_secret)

    def shares_tokenizer(self, other: Season) -> bool:
        """Whether both have the same tokens. One of a kind is trained on each corpus, so the stored files decide."""
        if self.pk == other.pk or self.tokenizer != other.tokenizer:
            return self.pk == other.pk
        files = SeasonFile.objects.filter(season__in=(self, other), kind=SeasonFile.Kind.DATASET, path=TOKENIZER)
        blobs = list(files.values_list("blob", flat=True))
        return len(blobs) == 2 and blobs[0] == blobs[1]

    def dataset(self, *splits: str) -> protocol.DatasetPin:
        """Return the pin of a job that reads these splits of the dataset. The season must be prepared.

        It names no files while the dataset is not stored as a whole: nodes then prepare it.
        """
        return protocol.DatasetPin(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            limit_bytes=self.limit_bytes,
            hash=self.dataset_hash,
            files=self.list_dataset_files(*splits) or None,
        )

    def list_dataset_files(self, *splits: str) -> tuple[protocol.FileRef, ...]:
        """Return the files that a job with these splits downloads; none while the dataset is not stored as a whole."""
        files = list(self.files.filter(kind=SeasonFile.Kind.DATASET).select_related("blob"))
        if not any(file.path == MANIFEST for file in files):
            return ()
        return tuple(file.get_reference() for file in files if file.path.rpartition("/")[0] in ("", *splits))

    def get_dataset_bytes(self, *splits: str) -> int:
        """Return the bytes that a job with these splits downloads; 0 if nodes prepare the dataset themselves."""
        return sum(file.size for file in self.list_dataset_files(*splits))

    def get_evaluation_files(self, tasks: Sequence[str]) -> tuple[protocol.FileRef, ...]:
        """Return the stored files of benchmark tasks."""
        wanted = {path for task in tasks if task in benchmark_tasks.NAMES for path in benchmark_tasks.list_files(task)}
        files = self.files.filter(kind=SeasonFile.Kind.EVALUATION, path__in=wanted).select_related("blob")
        return tuple(file.get_reference() for file in files)

    def list_missing_tasks(self, tasks: Sequence[str]) -> list[str]:
        """Return the tasks of which a file is not stored, so that no scorer has it."""
        stored = {file.path for file in self.get_evaluation_files(tasks)}
        known = benchmark_tasks.NAMES
        return [task for task in tasks if task not in known or not stored.issuperset(benchmark_tasks.list_files(task))]


class SeasonFile(models.Model):
    """A file of a season in the storage, which nodes download by its hash."""

    class Kind(models.TextChoices):
        DATASET = "dataset"
        EVALUATION = "evaluation"

    season = models.ForeignKey(Season, on_delete=models.CASCADE, related_name="files")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    path = models.CharField(max_length=200, help_text="In the folder of the dataset, or of the evaluation data.")
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["season", "kind", "path"]
        constraints = [models.UniqueConstraint(fields=["season", "kind", "path"], name="one_season_file_per_path")]

    def __str__(self) -> str:
        return self.path

    def get_reference(self) -> protocol.FileRef:
        return protocol.FileRef(path=self.path, sha256=self.blob.sha256, size=self.blob.size)
