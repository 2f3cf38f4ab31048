"""The API's documentation page, rendered from its OpenAPI schema without a script or a third-party request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase

Schema = Mapping[str, Any]
TYPE_NAMES = {"array": "list", "object": "table", "string": "text"}
MAX_DEPTH = 6  # of nested tables in an example


class DocumentationPage(DocsBase):
    """Replaces ninja's viewers, which load scripts of third parties."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        schema = api.get_openapi_schema(path_params=kwargs)
        context = {
            "description": format_code(api.description),
            "openapi_url": self.get_openapi_url(api, kwargs),
            "subjects": group_operations(schema),
        }
        return render(request, "leaderboard/api.html", context)


def group_operations(schema: Schema) -> dict[str, list[dict[str, Any]]]:
    """Return the operations by subject, in the order of the routers."""
    subjects: dict[str, list[dict[str, Any]]] = {}
    for path, methods in schema["paths"].items():
        for method, details in methods.items():
            subjects.setdefault(details["tags"][0], []).append(build_operation(schema, path, method, details))
    return subjects


def build_operation(schema: Schema, path: str, method: str, details: Schema) -> dict[str, Any]:
    """Return a row of the page and its details. The examples are JSON with types in place of values."""
    replies = (reply for code, reply in details["responses"].items() if str(code).startswith("2"))
    needs_token = "security" in details
    return {
        "method": method.upper(),
        "path": path,
        "anchor": re.sub(r"[^a-z0-9]+", "-", f"{method}{path}").strip("-"),
        "title": details.get("summary", ""),
        "description": format_code(details.get("description", "")),
        "needs_token": needs_token,
        "deprecated": details.get("deprecated"),
        "parameters": [build_parameter(schema, parameter) for parameter in details.get("parameters", [])],
        "request_example": format_example(schema, details.get("requestBody", {})),
        "response_example": format_example(schema, next(replies, {})),
        "curl": format_curl_command(path, method, needs_token),
    }


def build_parameter(schema: Schema, details: Schema) -> dict[str, Any]:
    parameter_schema = details["schema"]
    return {
        "name": details["name"],
        "type": format_type(schema, parameter_schema),
        "description": format_code(details.get("description") or parameter_schema.get("description", "")),
        "required": details.get("required"),
    }


def format_code(text: str) -> SafeString:
    """Return a docstring's text as HTML, with `<code>` around what stands between backticks."""
    parts = enumerate(re.split(r"`([^`]+)`", text))
    return format_html_join("", "{}", ((format_html("<code>{}</code>", part) if i % 2 else part,) for i, part in parts))


def format_curl_command(path: str, method: str, needs_token: bool) -> str:
    words = ["curl"]
    if needs_token:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if method != "get":
        words.append(f"-X {method.upper()} -H 'Content-Type: application/json' -d @request.json")
    return " ".join([*words, f"'{settings.SITE_URL}{path}'"])


# --- schemas as examples ---------------------------------------------------------------------------------------------


def format_example(schema: Schema, details: Schema) -> str:
    """Return the first content of a request or response as an example; empty without one."""
    for content in details.get("content", {}).values():
        if "schema" in content:
            return json.dumps(build_example(schema, content["schema"]), indent=2, ensure_ascii=False)
    return ""


def build_example(schema: Schema, node: Schema, depth: int = 0) -> Any:
    node = resolve_reference(schema, node)
    if "properties" in node and depth < MAX_DEPTH:
        return {name: build_example(schema, child, depth + 1) for name, child in node["properties"].items()}
    if "items" in node and depth < MAX_DEPTH:
        return [build_example(schema, node["items"], depth + 1)]
    options = [option for option in node.get("anyOf", ()) if resolve_reference(schema, option).get("type") != "null"]
    if len(options) == 1 and "properties" in resolve_reference(schema, options[0]):
        return build_example(schema, options[0], depth)
    return format_type(schema, node)


def resolve_reference(schema: Schema, node: Schema) -> Schema:
    while "$ref" in node:
        node = schema["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return node


def format_type(schema: Schema, node: Schema) -> str:
    """Return a type in a few words: "integer or null", "flops or seconds"."""
    return " or ".join(dict.fromkeys(list_types(schema, node))) or "anything"


def list_types(schema: Schema, node: Schema) -> Iterator[str]:
    node = resolve_reference(schema, node)
    if "enum" in node or "const" in node:
        yield from (str(value) for value in node.get("enum", [node.get("const")]))
        return
    for option in node.get("anyOf", ()):
        yield from list_types(schema, option)
    if "type" in node:
        yield TYPE_NAMES.get(node["type"], str(node["type"]))
