"""The API's own documentation page, written from its OpenAPI schema: no script, and no request to anybody else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase

Schema = Mapping[str, Any]
NAMES = {"array": "list", "object": "table", "string": "text"}
DEPTH = 6
"""Of tables within tables that an example shows."""


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    about: str
    needed: bool


@dataclass(frozen=True)
class Operation:
    """One line of the page, and what it opens to."""

    method: str
    path: str
    title: str
    about: str
    token: bool
    deprecated: bool
    parameters: list[Parameter]
    asks: str
    """The body it takes, as JSON with kinds for values; empty where it takes none."""
    answers: str
    """The same of what comes back."""
    curl: str

    @property
    def anchor(self) -> str:
        return f"{self.method.lower()}-{re.sub(r'[^a-z0-9]+', '-', self.path.lower()).strip('-')}"


class Pages(DocsBase):
    """In place of a viewer from somebody's network."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        schema = api.get_openapi_schema(path_params=kwargs)
        context = {
            "description": api.description,
            "openapi": self.get_openapi_url(api, kwargs),
            "subjects": subjects(schema),
        }
        return render(request, "leaderboard/api.html", context)


def subjects(schema: Schema) -> dict[str, list[Operation]]:
    """Return the operations by what they are about, in the order in which the API was put together."""
    found: dict[str, list[Operation]] = {}
    for path, methods in schema["paths"].items():
        for method, said in methods.items():
            subject = (said.get("tags") or ["Other"])[0]
            found.setdefault(subject, []).append(operation(schema, path, method, said))
    return found


def operation(schema: Schema, path: str, method: str, said: Schema) -> Operation:
    asks = content(said.get("requestBody", {}))
    answer: Schema = next((answer for code, answer in said["responses"].items() if str(code).startswith("2")), {})
    token = bool(said.get("security"))
    return Operation(
        method=method.upper(),
        path=path,
        title=said.get("summary", ""),
        about=marked(said.get("description", "")),
        token=token,
        deprecated=bool(said.get("deprecated")),
        parameters=[parameter(schema, one) for one in said.get("parameters", [])],
        asks=shape(schema, asks) if asks else "",
        answers=shape(schema, content(answer)) if content(answer) else "",
        curl=curl(path, method, token),
    )


def content(said: Schema) -> Schema:
    found: Schema = next((one["schema"] for one in said.get("content", {}).values() if "schema" in one), {})
    return found


def parameter(schema: Schema, said: Schema) -> Parameter:
    return Parameter(
        name=said["name"],
        kind=kind(schema, said.get("schema", {})),
        about=marked(said.get("description") or said.get("schema", {}).get("description") or ""),
        needed=bool(said.get("required")),
    )


def marked(text: str) -> SafeString:
    """Return a docstring's text as HTML: what stands between backticks is code."""
    return mark_safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)))  # noqa: S308 (escaped)


def curl(path: str, method: str, token: bool) -> str:
    """Return what to type."""
    words = ["curl"]
    if token:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if method != "get":
        words.append(f"-X {method.upper()} -H 'Content-Type: application/json' -d @asked.json")
    return " ".join([*words, f"'{settings.SITE_URL}{path}'"])


# --- schemas as examples ---------------------------------------------------------------------------------------------


def shape(schema: Schema, said: Schema) -> str:
    """Return a schema as JSON that has kinds where its values will be."""
    return json.dumps(example(schema, said), indent=2, ensure_ascii=False)


def example(schema: Schema, said: Schema, depth: int = 0) -> Any:
    said = resolved(schema, said)
    if "properties" in said and depth < DEPTH:
        return {name: example(schema, one, depth + 1) for name, one in said["properties"].items()}
    if "items" in said and depth < DEPTH:
        return [example(schema, said["items"], depth + 1)]
    options = [one for one in said.get("anyOf", ()) if resolved(schema, one).get("type") != "null"]
    if len(options) == 1 and "properties" in resolved(schema, options[0]):
        return example(schema, options[0], depth)
    return kind(schema, said)


def resolved(schema: Schema, said: Schema) -> Schema:
    while "$ref" in said:
        said = schema["components"]["schemas"][said["$ref"].rpartition("/")[2]]
    return said


def kind(schema: Schema, said: Schema) -> str:
    """Return what a value is in a few words: "integer or null", "flops or seconds"."""
    return " or ".join(dict.fromkeys(kinds(schema, said))) or "anything"


def kinds(schema: Schema, said: Schema) -> Iterator[str]:
    said = resolved(schema, said)
    if "enum" in said or "const" in said:
        yield from (str(value) for value in said.get("enum", [said.get("const")]))
        return
    for one in said.get("anyOf", ()):
        yield from kinds(schema, one)
    if "type" in said:
        yield NAMES.get(said["type"], str(said["type"]))
