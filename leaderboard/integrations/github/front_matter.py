"""Parser of the front matter of a pull request: a block of fields in its description.

    ---
    track: small
    hypothesis: Keys that see one token back need fewer heads.
    expected_effect: 3 % less compute
    contact: @ada
    ---

It looks like YAML, but its sentences may contain colons and quotes, and a value continues until the next field. What
GitHub's editor leaves is accepted: CRLF, comments of the template, dashes of a list, typographic quotes, fenced blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import dropwhile, takewhile
from typing import Any

from leaderboard.sanitize import check_storable

# Names of fields and their maximum lengths in characters.
FIELDS = {
    "track": 50,
    "hypothesis": 2000,
    "expected_effect": 300,
    "contact": 200,
    "architecture": 80,
    "based_on": 20,
    "config": 10_000,
}
REQUIRED_FIELDS = {
    "hypothesis": "say in a sentence what you expect to see, and why",
    "expected_effect": "say how much, for instance “3 % less compute”, “no change” or “not known”",
    "contact": "say how to reach you, for instance “@ada”",
}
NO_RUN = "none"  # the track of changes that need no run
NO_BLOCK = "The description has no block that says what to train."
MAX_BODY_LENGTH = 60_000  # GitHub allows 65,536 characters
MAX_LINES = 200

COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
RULE = re.compile(r"-{3,}\s*")
FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*[\w-]*\s*")
FIELD = re.compile(r"(?:[-*+][ \t]+)?[*_`]*([A-Za-z][A-Za-z _-]{0,30}?)[*_`]*[ \t]*:[*_]*(?:[ \t]+(.*)|$)")
BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?")
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}


@dataclass(frozen=True)
class FrontMatter:
    """The fields of a block. `problems` are messages for the author."""

    track: str = ""  # slug
    hypothesis: str = ""
    expected_effect: str = ""
    contact: str = ""
    architecture: str = ""
    based_on: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def wants_no_run(self) -> bool:
        return self.track == NO_RUN

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}


# --- find the block ---------------------------------------------------------------------------------------------------


def find_block(body: str) -> list[str] | None:
    """Return the lines of the first block with one of `FIELDS`, or None."""
    text = body[:MAX_BODY_LENGTH].replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").lstrip("\ufeff")
    lines = COMMENT.sub("", text).expandtabs(4).split("\n")
    for start, line in enumerate(lines):
        if not (closing := get_closing_pattern(line)):
            continue
        inside = take_until(lines[start + 1 :], closing)
        if any(get_field_name(line) in FIELDS for line in inside):
            return inside
    return None


def get_closing_pattern(line: str) -> re.Pattern[str] | None:
    """Return the pattern of the last line of a block that begins with this line; None if no block begins."""
    if RULE.fullmatch(line):
        return RULE
    if fence := FENCE.fullmatch(line):
        return re.compile(rf"{re.escape(fence[1])}{fence[1][0]}*\s*")
    return None


def take_until(lines: Sequence[str], closing: re.Pattern[str]) -> list[str]:
    """Return the lines of the block; without a closing line its first paragraph."""
    lines = lines[:MAX_LINES]
    for end, line in enumerate(lines):
        if closing.fullmatch(line):
            return list(lines[:end])
    return list(takewhile(str.strip, dropwhile(lambda line: not line.strip(), lines)))


def get_field_name(line: str) -> str:
    """Return the normalized name of the field that begins with a line, or an empty string."""
    found = FIELD.fullmatch(line.rstrip())
    if found is None:
        return ""
    name = re.sub(r"[ _-]+", "_", found[1].strip().lower())
    # “So we think: ...” is a sentence; one unknown word is probably a misspelled field.
    return name if name in FIELDS or (" " not in found[1] and len(name) > 2) else ""


# --- parse the fields -------------------------------------------------------------------------------------------------


def split_fields(lines: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the names and lines of the fields, from the text after the colon on. `#` begins a comment."""
    fields: list[tuple[str, list[str]]] = []
    for line in lines:
        if re.match(r"\s*#( |$)", line):
            continue
        if name := get_field_name(line):
            fields.append((name, [line.partition(":")[2].lstrip("*_").strip()]))
        elif fields:
            fields[-1][1].append(line)
    return fields


def parse_front_matter(body: str | None, tracks: Mapping[str, str]) -> FrontMatter | None:
    """Parse a description; None if it has no block, or an empty one. `tracks`: slug -> name."""
    lines = find_block(body or "")
    if lines is None:
        return None
    fields: dict[str, list[str]] = {}
    problems: list[str] = []
    for name, value in split_fields(lines):
        if name not in FIELDS:
            problems.append(describe_unknown_field(name))
        elif name in fields:
            problems.append(f"`{name}` comes twice: leave one.")
        else:
            fields[name] = value
    if not problems and not any(join_value(value) for value in fields.values()):
        return None
    return check_fields(fields, problems, tracks)


def check_fields(fields: Mapping[str, list[str]], problems: list[str], tracks: Mapping[str, str]) -> FrontMatter:
    words = {name: join_value(fields.get(name, [])) for name in FIELDS if name not in ("based_on", "config")}
    for name in ("track", "architecture"):
        words[name] = re.sub(r"(^|\s)#.*", "", words[name]).strip().strip("`").strip()  # without a YAML comment
    track = find_track(words["track"], tracks)
    if track == NO_RUN:
        return FrontMatter(track=NO_RUN)
    if not track:
        problems.append(describe_unknown_track(words["track"], tracks))
    for name, what in REQUIRED_FIELDS.items():
        if not words[name]:
            problems.append(f"`{name}` is missing: {what}.")
    for name, value in words.items():
        if len(value) > FIELDS[name]:
            problems.append(f"`{name}` has {len(value)} characters; at most {FIELDS[name]} are kept.")
    number = re.sub(r"\s#\s.*", "", join_value(fields.get("based_on", []))).removeprefix("#")
    if number and not re.fullmatch(r"[1-9]\d{0,17}", number):
        problems.append(f"`based_on` takes the number of an entry, such as 12, not “{number[:40]}”.")
        number = ""
    config: dict[str, Any] = {}
    try:
        config = parse_config(fields.get("config", []))
    except ValueError as error:
        problems.append(f"`config` cannot be read: {error}.")
    based_on = int(number) if number else None
    return FrontMatter(**{**words, "track": track}, based_on=based_on, config=config, problems=tuple(problems))


def join_value(lines: Sequence[str]) -> str:
    """Return a value as one line of text, without quotes around it."""
    if lines and BLOCK_SCALAR.fullmatch(lines[0].strip()):
        lines = lines[1:]
    text = " ".join(part for line in lines for part in line.split())
    text = "".join(letter for letter in text if letter.isprintable())
    closing = QUOTES.get(text[:1])
    if closing is not None and len(text) > 1 and text.endswith(closing):
        inner = text[1:-1].replace('\\"', '"') if closing == '"' else text[1:-1]
        return inner.strip()
    return text.strip()


def find_track(track: str, tracks: Mapping[str, str]) -> str:
    """Return the slug of a track by its slug or name, or an empty string."""
    slugs = {NO_RUN: NO_RUN} | {name.casefold(): slug for slug, name in tracks.items()}
    return (slugs | {slug.casefold(): slug for slug in tracks}).get(track.casefold(), "")


def describe_unknown_track(track: str, tracks: Mapping[str, str]) -> str:
    choice = f"it is one of {format_names(tracks)}" if tracks else "and this site has no track yet"
    if not track:
        return f"`track` is missing: {choice}, or `{NO_RUN}` for a change that asks for no run."
    return f"There is no track “{track[:50]}”: {choice}."


def describe_unknown_field(name: str) -> str:
    close = get_close_matches(name, FIELDS, n=1)
    hint = f"is `{close[0]}` meant?" if close else f"there are {format_names(FIELDS)}."
    return f"There is no field `{name[:40]}`: {hint}"


def format_names(names: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- the configuration -----------------------------------------------------------------------------------------------


def parse_config(lines: Sequence[str]) -> dict[str, Any]:
    """Parse `config`: a JSON object, dotted names (`model.depth: 4`), or sections with indented names.

    Raises ValueError; the caller adds the final period. Not YAML, which has 3e-4 as a text and `no` as false.
    """
    config: dict[str, Any]
    text = "\n".join(lines).strip()
    if sum(map(len, lines)) > FIELDS["config"]:
        raise ValueError(f"it has more than {FIELDS['config']} characters")
    if text.startswith("{"):
        try:
            config = dict(json.loads(text, parse_constant=reject_constant))
        except (ValueError, RecursionError):
            raise ValueError("it begins like JSON and is none") from None
        check_storable(config)
        return config
    config = {}
    section = ""
    for line in lines:
        if not line.strip():
            continue
        name, colon, value = line.strip().removeprefix("- ").partition(":" if ":" in line else "=")
        name, value = name.strip().strip("`"), re.sub(r"\s#.*", "", value).strip()
        if not colon or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
            raise ValueError(f"“{line.strip()[:60]}” is not “name: value”")
        if not value:
            section = name
        else:
            within = section.split(".") if section and line[:1] == " " and "." not in name else []
            set_value(config, [*within, *name.split(".")], value)
    check_storable(config)
    return config


def set_value(config: dict[str, Any], path: Sequence[str], value: str) -> None:
    if len(path) < 2:
        raise ValueError(f"{path[0]} belongs to no section; write model.{path[0]}, recipe.{path[0]} or train.{path[0]}")
    for name in path[:-1]:
        config = config.setdefault(name, {})
        if not isinstance(config, dict):
            raise ValueError(f"{'.'.join(path)} is set twice")
    if path[-1] in config:
        raise ValueError(f"{'.'.join(path)} is set twice")
    config[path[-1]] = parse_scalar(value)


def parse_scalar(value: str) -> Any:
    """Return the JSON value, or else the text."""
    try:
        return json.loads(value, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        return join_value([value])


def reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
