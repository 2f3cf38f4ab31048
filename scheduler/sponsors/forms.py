"""Forms of sponsors: lend a node, change its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.core.validators import RegexValidator
from django.utils import timezone

from scheduler import job_kinds
from scheduler.models import Node, Sponsor
from scheduler.models.sponsors import LINK
from scheduler.sponsors.lending import NodeSettings

MIN_WINDOW_ROWS = 4
"""Rows for weekly windows in the form. A node with more windows gets more rows."""
WEEKDAYS = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
GIGABYTE = 10**9
MAX_LENDING_TIME = timedelta(days=366)
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


class NodeSettingsForm(forms.Form):
    """When, for whom and how much a node is lent."""

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
        help_text="For jobs that ask for them, such as lab-cluster. The node detects GPUs, memory and disk itself.",
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
        label="Disk",
        required=False,
        min_value=10,
        max_value=1_000_000,
        help_text="GB. Empty: all free space. Less than 500 is fine: the node gets only jobs that fit.",
    )
    max_hours = forms.FloatField(
        label="Longest run",
        required=False,
        min_value=0.5,
        max_value=24 * 60,
        help_text="Hours. Empty: no limit. A longer run continues on another node.",
    )
    shown = forms.ChoiceField(
        label="Shown on the list of sponsors",
        choices=[("name", "by name"), ("anonymous", "anonymously: counted but not named")],
        widget=forms.RadioSelect,
        initial="name",
    )
    sponsor_name = forms.CharField(label="Your name there", required=False, max_length=60)
    sponsor_link = forms.CharField(
        label="Link", required=False, max_length=200, validators=[LINK], help_text="Your web page (optional)."
    )

    def __init__(
        self,
        data: Mapping[str, Any] | None,
        *,
        node: Node | None = None,
        sponsor: Sponsor | None = None,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        self.node = node
        self.window_groups = group_windows(node) if node else []
        known = {
            **(build_initial_settings(node) if node else {}),
            **build_window_fields(self.window_groups),
            **(initial or {}),
        }
        if sponsor:
            known |= {"sponsor_name": sponsor.name, "sponsor_link": sponsor.link}
        super().__init__(data, initial=known)
        field = self.fields["serves_track"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = list(job_kinds.list_tracks().items())
        for row in range(self.row_count):
            self.fields[f"days_{row}"] = forms.TypedMultipleChoiceField(
                choices=list(enumerate(WEEKDAYS)), coerce=int, required=False, widget=forms.CheckboxSelectMultiple
            )
            for end in ("from", "to"):
                self.fields[f"{end}_{row}"] = forms.TimeField(
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

    def clean(self) -> dict[str, Any]:
        data = super().clean() or self.cleaned_data
        if data.get("available") == Node.Available.WINDOWS:
            self.check_windows()
        if data.get("available") == Node.Available.UNTIL and "available_until" in data:
            self.check_until()
        if data.get("serves") == Node.Serves.TRACK and not data.get("serves_track"):
            self.add_error("serves_track", "Choose a track, or lend the node to everyone.")
        if data.get("shown") == "name" and not data.get("sponsor_name") and "sponsor_name" not in self.errors:
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

    def build_settings(self) -> NodeSettings:
        """Return the settings of the valid form."""
        data = self.cleaned_data
        by_track = data["serves"] == Node.Serves.TRACK
        return NodeSettings(
            serves=data["serves"],
            serves_track=data["serves_track"] if by_track else "",
            packets=data["packets"] or Node.Packets.NEVER,
            available=data["available"],
            available_until=data["available_until"] if data["available"] == Node.Available.UNTIL else None,
            timezone=data["timezone"],
            max_hours=data["max_hours"],
            disk_bytes=data["disk"] * GIGABYTE if data["disk"] else None,
            shown=data["shown"] == "name",
            slots=self.count_slots(),
            owner_labels=data["labels"],
            windows=self.list_windows() if data["available"] == Node.Available.WINDOWS else (),
        )

    def count_slots(self) -> int:
        count = len(self.node.hardware.get("gpus") or []) if self.node else 1
        return max(count, 1) if self.cleaned_data["lanes"] == "each" else 1

    def list_windows(self) -> tuple[tuple[int, time, time], ...]:
        data = self.cleaned_data
        return tuple(
            sorted({
                (day, data[f"from_{row}"], data[f"to_{row}"])
                for row in range(self.row_count)
                for day in data[f"days_{row}"]
            })
        )  # fmt: skip


class LendForm(NodeSettingsForm):
    """The settings of a new node, with its name and GPUs."""

    name = forms.CharField(
        label="Name",
        max_length=40,
        validators=[RegexValidator(NAME, "Use letters, digits, dots, dashes and underscores.")],
        help_text="Public: the pages of the runs it serves show it.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false", "autocapitalize": "none"}),
    )
    gpu_count = forms.TypedChoiceField(
        label="GPUs", coerce=int, initial=1, choices=[(0, "none, CPU only"), *((n, str(n)) for n in range(1, 17))]
    )
    gpu_name = forms.CharField(
        label="Model",
        required=False,
        max_length=60,
        help_text="The node detects it when it joins. Until then the site uses this.",
        widget=forms.TextInput(attrs={"list": "gpu-names"}),
    )
    gpu_names = GPU_NAMES
    field_order = ("name", "gpu_count", "gpu_name")

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if Node.objects.filter(name__iexact=name).exists():
            raise forms.ValidationError("A node with this name exists. Choose another name.")
        return name

    def list_gpus(self) -> list[str]:
        return [self.cleaned_data["gpu_name"].strip() or "GPU"] * self.cleaned_data["gpu_count"]

    def count_slots(self) -> int:
        return max(self.cleaned_data["gpu_count"], 1) if self.cleaned_data["lanes"] == "each" else 1


class SponsorForm(forms.Form):
    """A sponsor's public name."""

    sponsor_name = forms.CharField(label="Name", max_length=60)
    sponsor_link = forms.CharField(label="Link", required=False, max_length=200, validators=[LINK])


# --- initial values of a known node ----------------------------------------------------------------------------------


def group_windows(node: Node) -> list[tuple[list[int], time, time]]:
    """Return the node's windows, with one entry for all days that have the same hours."""
    days: dict[tuple[time, time], list[int]] = {}
    for window in node.windows.all():
        days.setdefault((window.start, window.end), []).append(window.weekday)
    return [(weekdays, start, end) for (start, end), weekdays in days.items()]


def build_window_fields(window_groups: list[tuple[list[int], time, time]]) -> dict[str, Any]:
    return {
        f"{part}_{row}": value
        for row, group in enumerate(window_groups)
        for part, value in zip(("days", "from", "to"), group, strict=True)
    }


def build_initial_settings(node: Node) -> dict[str, Any]:
    until = node.available_until.astimezone(ZoneInfo(node.timezone)) if node.available_until else None
    return {
        "lanes": "each" if node.slots > 1 else "together",
        "labels": " ".join(node.owner_labels),
        "available": node.available,
        "timezone": node.timezone,
        **({"available_until": until.replace(tzinfo=None)} if until else {}),
        "serves": node.serves,
        "serves_track": node.serves_track,
        "packets": node.packets,
        "disk": node.disk_bytes // GIGABYTE if node.disk_bytes else None,
        "max_hours": node.max_hours,
        "shown": "name" if node.shown else "anonymous",
    }
