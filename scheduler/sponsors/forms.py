"""Forms of sponsors: lend a node, change its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.contrib.auth.models import User
from django.core.validators import RegexValidator
from django.db import transaction
from django.utils import timezone

from scheduler import job_kinds
from scheduler.models import Event, Node, Sponsor, Window
from scheduler.models.pool import LINK

MIN_WINDOW_ROWS = 4
"""Rows for weekly windows in the form. A node with more windows gets more rows."""
WEEKDAYS = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
GIGABYTE = 10**9
MAX_LENDING_TIME = timedelta(days=366)
MAX_UNJOINED_NODES = 20
"""Nodes of one owner that have never joined."""
NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")
LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
DETECTED_LABEL = re.compile(r"\d+x.*|\d+(gb|mb|tb)|(rtx)?[abhlvt]?\d{1,4}(ti|s|super)?")
"""Labels that a node gives itself by its hardware; an owner cannot set them."""
GPU_NAMES = ("RTX 3090", "RTX 4090", "RTX 5090", "L4", "L40S", "A100 40GB", "A100 80GB", "H100", "H200", "B200")


@cache
def list_time_zones() -> list[tuple[str, Any]]:
    """Return the IANA time zones by continent, as the choices of a field."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(available_timezones()):
        continent, _, place = name.partition("/")
        if place and continent not in ("Etc", "SystemV", "posix", "right", "US", "Canada", "Brazil", "Chile", "Mexico"):
            groups.setdefault(continent, []).append((name, place.replace("_", " ").replace("/", ", ")))
    return [("UTC", "UTC"), *groups.items()]


def get_next_monday() -> datetime:
    """Return next Monday, 06:00: the end of this weekend."""
    now = timezone.now()
    days = (7 - now.weekday()) % 7 or 7
    return (now + timedelta(days=days)).replace(hour=6, minute=0, second=0, microsecond=0)


NAME_TAKEN = "A node with this name exists. Choose another name."
NAME_EXAMPLE = {"placeholder": "Ada’s lab"}
LINK_EXAMPLE = {"placeholder": "https://example.org"}


class NodeSettingsForm(forms.ModelForm):  # type: ignore[type-arg]
    """The settings of a lent node: times, tracks and limits."""

    class Meta:
        model = Node
        fields = ["available", "available_until", "timezone", "serves", "serves_track", "packets", "max_hours"]

    field_order = ("name", "gpu_count", "gpu_name", "lanes", "labels", *Meta.fields[:-1], "disk", "max_hours")
    lanes = forms.TypedChoiceField(
        label="Several GPUs",
        choices=[("together", "one job on all of them"), ("each", "a job on each of them")],
        widget=forms.RadioSelect,
        initial="together",
    )
    labels = forms.CharField(
        label="Labels of your own",
        required=False,
        max_length=200,
        help_text="For jobs that ask for them. The node detects GPUs, memory and disk itself.",
        widget=forms.TextInput(attrs={"placeholder": "lab-cluster fast-disk"}),
    )
    available = forms.ChoiceField(
        label="When may it work?", choices=Node.Available.choices, widget=forms.RadioSelect, initial="always"
    )
    timezone = forms.ChoiceField(label="Your time zone", choices=list_time_zones, initial="UTC")
    available_until = forms.DateTimeField(
        label="Until",
        required=False,
        initial=get_next_monday,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    serves = forms.ChoiceField(
        label="For whom?", choices=Node.Serves.choices, widget=forms.RadioSelect, initial="everyone"
    )
    serves_track = forms.ChoiceField(label="Track", required=False)
    packets = forms.ChoiceField(
        label="Packets of the dataset swarm?",
        choices=[
            (Node.Packets.NEVER, "no"),
            (Node.Packets.BETWEEN, "yes, while no run waits for it"),
            (Node.Packets.ONLY, "yes, and nothing else"),
        ],
        widget=forms.RadioSelect,
        initial=Node.Packets.NEVER,
        required=False,
    )
    disk = forms.IntegerField(
        label="Disk space to lend, in GB",
        required=False,
        min_value=10,
        max_value=1_000_000,
        help_text="For jobs and caches together. Empty: all free space. The node gets only jobs that fit, and deletes "
        "old datasets that no job uses.",
        widget=forms.NumberInput(attrs={"placeholder": "500"}),
    )
    max_hours = forms.FloatField(
        label="Longest run, in hours",
        required=False,
        min_value=0.5,
        max_value=24 * 60,
        help_text="Empty: no limit. A longer run continues on another node.",
        widget=forms.NumberInput(attrs={"placeholder": "8"}),
    )
    shown = forms.ChoiceField(
        label="Shown on the list of sponsors",
        choices=[("name", "by name"), ("anonymous", "anonymously: counted but not named")],
        widget=forms.RadioSelect,
        initial="name",
    )
    sponsor_name = forms.CharField(
        label="Your name there", required=False, max_length=60, widget=forms.TextInput(attrs=NAME_EXAMPLE)
    )
    sponsor_link = forms.CharField(
        label="Your web page (optional)",
        required=False,
        max_length=200,
        validators=[LINK],
        widget=forms.TextInput(attrs=LINK_EXAMPLE),
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        *,
        node: Node,
        sponsor: Sponsor | None = None,
        is_owner: bool = True,
    ) -> None:
        """`is_owner`: whether the owner edits the node. Others cannot set the owner's public name."""
        self.is_owner = is_owner
        self.window_groups = group_windows(node) if node.pk else []
        initial: dict[str, Any] = {
            "lanes": "each" if node.slots > 1 else "together",
            "labels": " ".join(node.owner_labels),
            "available_until": get_next_monday(),
            "disk": node.disk_bytes // GIGABYTE if node.disk_bytes else None,
            "shown": "name" if node.shown else "anonymous",
        }
        if node.available_until:
            initial["available_until"] = node.available_until.astimezone(ZoneInfo(node.timezone)).replace(tzinfo=None)
        if sponsor:
            initial |= {"sponsor_name": sponsor.name, "sponsor_link": sponsor.link}
        elif node.owner and not node.pk:
            initial["sponsor_name"] = node.owner.get_username()
        for row, (days, start, end) in enumerate(self.window_groups):
            initial |= {f"days_{row}": days, f"from_{row}": start, f"to_{row}": end}
        super().__init__(data, instance=node, initial=initial)
        tracks = self.fields["serves_track"]
        assert isinstance(tracks, forms.ChoiceField)
        tracks.choices = [(slug, track.name) for slug, track in job_kinds.list_tracks().items()]
        for row in range(self.row_count):
            self.fields[f"days_{row}"] = forms.TypedMultipleChoiceField(
                choices=list(enumerate(WEEKDAYS)), coerce=int, required=False, widget=forms.CheckboxSelectMultiple
            )
            for part in ("from", "to"):
                self.fields[f"{part}_{row}"] = forms.TimeField(
                    required=False, widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M")
                )

    @property
    def row_count(self) -> int:
        return max(MIN_WINDOW_ROWS, len(self.window_groups) + 1)

    def list_window_fields(self) -> list[dict[str, forms.BoundField]]:
        """Return the fields of each row, for the template."""
        return [
            {part: self[f"{name}_{row}"] for part, name in (("days", "days"), ("start", "from"), ("end", "to"))}
            for row in range(self.row_count)
        ]

    # --- validation ----------------------------------------------------------------------------------------------

    def clean_labels(self) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(self.cleaned_data["labels"].lower().replace(",", " ").split()))
        for label in found:
            if not LABEL.fullmatch(label):
                raise forms.ValidationError(f"“{label}” is not a valid label. Use letters, digits, dots and dashes.")
            if DETECTED_LABEL.fullmatch(label):
                raise forms.ValidationError(f"The node sets “{label}” itself. Remove it.")
        return found

    def clean_packets(self) -> str:
        return self.cleaned_data["packets"] or Node.Packets.NEVER

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if data.get("available") == Node.Available.WINDOWS:
            self.check_windows()
        if data.get("available") != Node.Available.UNTIL:
            data["available_until"] = None
        elif "available_until" in data:
            self.check_until()
        if data.get("serves") != Node.Serves.TRACK:
            data["serves_track"] = ""
        elif not data.get("serves_track"):
            self.add_error("serves_track", "Choose a track, or lend the node to everyone.")
        has_name = data.get("sponsor_name") or "sponsor_name" in self.errors
        if self.is_owner and data.get("shown") == "name" and not has_name:
            self.add_error("sponsor_name", "Enter a name, or choose to stay anonymous.")
        return data

    def check_windows(self) -> None:
        """Check that every window that was started has days, a start and an end, and that there is one."""
        begun = 0
        for row in range(self.row_count):
            days, start, end = (self.cleaned_data.get(f"{part}_{row}") for part in ("days", "from", "to"))
            if not (days or start or end):
                continue
            begun += 1
            if not days:
                self.add_error(f"days_{row}", "Choose the days.")
            elif start is None or end is None:
                self.add_error(f"from_{row}", "Enter a start and an end. From 00:00 to 00:00 is the whole day.")
        if not begun and not any(
            f"{part}_{row}" in self.errors for row in range(self.row_count) for part in ("from", "to")
        ):
            self.add_error("days_0", "Choose at least one day with a start and an end.")

    def check_until(self) -> None:
        until, zone = self.cleaned_data["available_until"], self.cleaned_data.get("timezone")
        if until is None:
            self.add_error("available_until", "Enter a date and a time.")
        elif zone:
            moment = until.replace(tzinfo=ZoneInfo(zone))  # the field parses it as UTC
            left = moment - timezone.now()
            if left <= timedelta():
                self.add_error("available_until", "This time has passed. Enter one in the future.")
            elif left >= MAX_LENDING_TIME:
                message = "This is more than a year ahead. Choose “Always” and drain the node when you need it back."
                self.add_error("available_until", message)
            self.cleaned_data["available_until"] = moment

    def count_gpus(self) -> int:
        return len(self.instance.hardware.get("gpus") or [])

    def list_windows(self) -> set[tuple[int, time, time]]:
        """Return weekday (0 is Monday), start and end of each window."""
        data = self.cleaned_data
        if data["available"] != Node.Available.WINDOWS:
            return set()
        rows = ((data[f"days_{row}"], data[f"from_{row}"], data[f"to_{row}"]) for row in range(self.row_count))
        return {(day, start, end) for days, start, end in rows for day in days}

    @transaction.atomic
    def save_settings(self, actor: User, message: str) -> Node:
        """Save the settings. They apply from the next job, an earlier end time immediately."""
        node: Node = self.instance
        data = self.cleaned_data
        detected = set(node.labels) - set(node.owner_labels)
        node.owner_labels = list(data["labels"])
        node.labels = sorted({*detected, *node.owner_labels})
        node.slots = max(self.count_gpus(), 1) if data["lanes"] == "each" else 1
        node.disk_bytes = data["disk"] * GIGABYTE if data["disk"] else None
        node.shown = data["shown"] == "name"
        changed = (*NodeSettingsForm.Meta.fields, "owner_labels", "labels", "slots", "disk_bytes", "shown")
        node.save(update_fields=changed if node.pk else None)
        node.windows.all().delete()
        Window.objects.bulk_create(
            Window(node=node, weekday=day, start=start, end=end) for day, start, end in sorted(self.list_windows())
        )
        Event.record(actor.get_username(), node, message)
        return node


class LendForm(NodeSettingsForm):
    """The settings of a new node, with its name and GPUs."""

    class Meta(NodeSettingsForm.Meta):
        fields = ["name", *NodeSettingsForm.Meta.fields]

    name = forms.CharField(
        label="Name of the machine",
        max_length=40,
        validators=[RegexValidator(NAME, "Use letters, digits, dots, dashes and underscores.")],
        help_text="Public: the pages of the runs it serves show it.",
        widget=forms.TextInput(
            attrs={"placeholder": "cellar-4090", "autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}
        ),
    )
    gpu_count = forms.TypedChoiceField(
        label="GPUs", coerce=int, initial=1, choices=[(0, "none, CPU only"), *((n, str(n)) for n in range(1, 17))]
    )
    gpu_name = forms.CharField(
        label="GPU model",
        required=False,
        max_length=60,
        help_text="The node detects it when it joins. Until then the site uses this.",
        widget=forms.TextInput(attrs={"list": "gpu-names", "placeholder": "RTX 4090"}),
    )
    gpu_names = GPU_NAMES

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if Node.objects.filter(name__iexact=name).exists():
            raise forms.ValidationError(NAME_TAKEN)
        return name

    def clean(self) -> dict[str, Any]:
        unjoined = Node.objects.filter(owner=self.instance.owner_id, token_hash=None, last_seen=None)
        if unjoined.count() >= MAX_UNJOINED_NODES:
            self.add_error(None, "Too many of your nodes have not joined yet. Let them join, or delete some.")
        return super().clean()

    def count_gpus(self) -> int:
        return int(self.cleaned_data["gpu_count"])

    def save_settings(self, actor: User, message: str) -> Node:
        gpus = [self.cleaned_data["gpu_name"].strip() or "GPU"] * self.count_gpus()
        self.instance.hardware = {"gpus": gpus} if gpus else {}  # until the node reports its own
        return super().save_settings(actor, message)


class SponsorForm(forms.Form):
    """A sponsor's public name."""

    sponsor_name = forms.CharField(label="Public name", max_length=60, widget=forms.TextInput(attrs=NAME_EXAMPLE))
    sponsor_link = forms.CharField(
        label="Your web page (optional)",
        required=False,
        max_length=200,
        validators=[LINK],
        widget=forms.TextInput(attrs=LINK_EXAMPLE),
    )


def group_windows(node: Node) -> list[tuple[list[int], time, time]]:
    """Return the node's windows, with one entry for all days that have the same hours."""
    days: dict[tuple[time, time], list[int]] = {}
    for window in node.windows.all():
        days.setdefault((window.start, window.end), []).append(window.weekday)
    return [(weekdays, start, end) for (start, end), weekdays in days.items()]
