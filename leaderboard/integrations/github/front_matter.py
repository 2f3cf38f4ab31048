"""What a pull request asks for: a small block of fields in its description.

    ---
    track: small
    hypothesis: Keys that see one token back need fewer heads.
    expected_effect: 3 % less compute
    contact: @ada
    ---

It looks like YAML and is read more kindly: a colon or a quote within a sentence needs no quoting, and the lines of a
value go on until the next field. Whatever GitHub's editor leaves (CRLF, comments of the template, a list's dashes,
typographic quotes, a fenced block instead of the rules) is taken as it is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import dropwhile, takewhile
from typing import Any

FIELDS = {
    # name: the most characters it may have
    "track": 50,
    "hypothesis": 2000,
    "expected_effect": 300,
    "contact": 200,
    "architecture": 80,
    "config": 10_000,
}
REQUIRED_FIELDS = {
    "hypothesis": "say in a sentence what you expect to see, and why",
    "expected_effect": "say how much, for instance “3 % less compute”, “no change” or “not known”",
    "contact": "say how to reach you, for instance “@ada”",
}
NO_RUN = "none"
"""A `track` that asks for no run at all."""
NO_BLOCK = "The description has no block that says what to train."
MAX_BODY_LENGTH = 60_000
"""Characters of a description that are looked at; GitHub allows 65,536."""
MAX_LINES = 200

COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
RULE = re.compile(r"-{3,}\s*")
FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*[\w-]*\s*")
FIELD = re.compile(r"(?:[-*+][ \t]+)?[*_`]*([A-Za-z][A-Za-z _-]{0,30}?)[*_`]*[ \t]*:[*_]*(?:[ \t]+(.*)|$)")
BLOCK_SCALAR = re.compile(r"[|>][+-]?\d?")
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’"}


@dataclass(frozen=True)
class FrontMatter:
    """What a block says, and what is wrong with it: each problem a sentence for its author."""

    track: str = ""
    """Slug."""
    hypothesis: str = ""
    expected_effect: str = ""
    contact: str = ""
    architecture: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def wants_no_run(self) -> bool:
        return self.track == NO_RUN

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}


# --- finding it ------------------------------------------------------------------------------------------------------


def find_block(body: str) -> list[str] | None:
    """Return the lines of the first block that has one of our fields; None where there is none."""
    lines = clean_body(body).split("\n")
    for start, line in enumerate(lines):
        if not (closing := get_closing_pattern(line)):
            continue
        inside = take_until(lines[start + 1 :], closing)
        if any(get_field_name(line) in FIELDS for line in inside):
            return inside
    return None


def clean_body(body: str) -> str:
    text = body[:MAX_BODY_LENGTH].replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ").lstrip("\ufeff")
    return COMMENT.sub("", text).expandtabs(4)


def get_closing_pattern(line: str) -> re.Pattern[str] | None:
    """Return what ends a block that this line begins; None where it begins none."""
    if RULE.fullmatch(line):
        return RULE
    if fence := FENCE.fullmatch(line):
        return re.compile(rf"{re.escape(fence[1])}{fence[1][0]}*\s*")
    return None


def take_until(lines: Sequence[str], closing: re.Pattern[str]) -> list[str]:
    """Return the lines before the one that closes the block; where none does, its first paragraph."""
    lines = lines[:MAX_LINES]
    for end, line in enumerate(lines):
        if closing.fullmatch(line):
            return list(lines[:end])
    filled = list(dropwhile(lambda line: not line.strip(), lines))
    return list(takewhile(lambda line: line.strip(), filled))


def get_field_name(line: str) -> str:
    """Return the name of the field that a line begins: lower case, with underscores; empty where it begins none."""
    found = FIELD.fullmatch(line.rstrip())
    if found is None:
        return ""
    name = re.sub(r"[ _-]+", "_", found[1].strip().lower())
    # “So we think: ...” is a sentence, not a field; one unknown word is a slip of the finger.
    return name if name in FIELDS or (" " not in found[1] and len(name) > 2) else ""


# --- reading it ------------------------------------------------------------------------------------------------------


def split_fields(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each field's name with its lines, the first of them what follows the colon."""
    name, value = "", list[str]()
    for line in lines:
        if line.lstrip().startswith("#") and (line.lstrip() + " ")[1] == " ":
            continue  # a comment, as in YAML
        if begun := get_field_name(line):
            if name:
                yield name, value
            found = FIELD.fullmatch(line.rstrip())
            assert found is not None, "a line that begins a field"
            name, value = begun, [found[2] or ""]
        elif name:
            value.append(line)
    if name:
        yield name, value


def parse_front_matter(body: str | None, tracks: Mapping[str, str]) -> FrontMatter | None:
    """Read a description. `tracks`: slug -> name. None where it has no block, or the template's, left as it was."""
    lines = find_block(body or "")
    if lines is None:
        return None
    found: dict[str, list[str]] = {}
    problems: list[str] = []
    for name, value in split_fields(lines):
        if name not in FIELDS:
            problems.append(describe_unknown_field(name))
        elif name in found:
            problems.append(f"`{name}` comes twice: leave one.")
        else:
            found[name] = value
    if not problems and not any(join_value(value) for value in found.values()):
        return None
    return check_fields(found, problems, tracks)


def check_fields(found: Mapping[str, list[str]], problems: list[str], tracks: Mapping[str, str]) -> FrontMatter:
    words = {name: join_value(found.get(name, [])) for name in FIELDS if name != "config"}
    words["track"], words["architecture"] = parse_word(words["track"]), parse_word(words["architecture"])
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
    config: dict[str, Any] = {}
    try:
        config = parse_config(found.get("config", []))
    except ValueError as error:
        problems.append(f"`config` cannot be read: {error}.")
    return FrontMatter(**{**words, "track": track}, config=config, problems=tuple(problems))


def join_value(lines: Sequence[str]) -> str:
    """Return a value as one line of text, without the marks that only quote it."""
    if lines and BLOCK_SCALAR.fullmatch(lines[0].strip()):
        lines = lines[1:]
    text = " ".join(part for line in lines for part in line.split())
    text = "".join(letter for letter in text if letter.isprintable())
    closing = QUOTES.get(text[:1])
    if closing is not None and len(text) > 1 and text.endswith(closing):
        inner = text[1:-1].replace('\\"', '"') if closing == '"' else text[1:-1]
        return inner.strip()
    return text.strip()


def parse_word(value: str) -> str:
    """Return a value that is one word, without what YAML would take for a comment, or code's marks."""
    return re.sub(r"(^|\s)#.*", "", value).strip().strip("`").strip()


def find_track(track: str, tracks: Mapping[str, str]) -> str:
    """Return the slug of the track that is meant; empty where it is none."""
    meant = track.casefold()
    if meant == NO_RUN and NO_RUN not in tracks:
        return NO_RUN
    return next((slug for slug, name in tracks.items() if meant in (slug.casefold(), name.casefold())), "")


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
    """Read `config`: a JSON table, dotted names (`model.depth: 4`), or sections whose names are indented.

    Raises ValueError with what is wrong; the line's end is left to the caller.
    """
    text = "\n".join(lines).strip()
    if sum(map(len, lines)) > FIELDS["config"]:
        raise ValueError(f"it has more than {FIELDS['config']} characters")
    if text.startswith("{"):
        return parse_json_table(text)
    found: dict[str, Any] = {}
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
            set_value(found, [*within, *name.split(".")], value)
    return found


def set_value(found: dict[str, Any], path: Sequence[str], value: str) -> None:
    if len(path) < 2:
        raise ValueError(f"{path[0]} belongs to no section; write model.{path[0]}, recipe.{path[0]} or train.{path[0]}")
    for name in path[:-1]:
        found = found.setdefault(name, {})
        if not isinstance(found, dict):
            raise ValueError(f"{'.'.join(path)} is set twice")
    if path[-1] in found:
        raise ValueError(f"{'.'.join(path)} is set twice")
    found[path[-1]] = parse_scalar(value)


def parse_json_table(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        raise ValueError("it begins like JSON and is none") from None
    assert isinstance(found, dict), "what begins with a brace"
    return found


def parse_scalar(value: str) -> Any:
    """Return what a value is in JSON; what is none is text."""
    try:
        return json.loads(value, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        return join_value([value])


def reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
