"""Generate the reference pages of settings, configuration and endpoints: `python -m docs.generate`.

`trainer.cli.reference` generates the page of commands. Tests compare all of them with the code.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "dailytrain" / "settings.py"
READERS = {"read_text", "read_boolean", "read_integer", "read_number", "read_words", "read_networks"}


def build_settings_page() -> str:
    """Return a table for each section of settings.py: variables, defaults, and the comments above them."""
    page = """# Settings

Set these environment variables for the web process, the worker and beat. Each variable can also be a file:
`SECRET_KEY_FILE=/run/secret` sets `SECRET_KEY`. An invalid value stops the start with an error, and
`python manage.py check --deploy` warns of an unsafe configuration.
"""
    section = None
    for title, name, default, meaning in iterate_settings(SETTINGS.read_text()):
        if title != section:
            section = title
            page += f"\n## {title[0].upper()}{title[1:]}\n\n|variable|default|meaning|\n|---|---|---|\n"
        page += f"|`{name}`|{default}|{meaning}|\n"
    return page


def iterate_settings(source: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield section, variable, default and meaning of each environment variable that settings.py reads."""
    lines, seen = source.splitlines(), set[str]()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef):
            continue
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in READERS:
                name, *default = call.args
                if isinstance(name, ast.Constant) and name.value not in seen:
                    seen.add(str(name.value))
                    yield (
                        find_section(lines, statement.lineno),
                        str(name.value),
                        describe_default(default),
                        find_comment(lines, call.lineno) or find_comment(lines, statement.lineno),
                    )


def find_section(lines: list[str], number: int) -> str:
    titles = [match[1] for line in lines[:number] if (match := re.match(r"# --- ([^(]+?)( \(.*\))? -", line))]
    return titles[-1] if titles else "basics"


def find_comment(lines: list[str], number: int) -> str:
    """Return the comment above a line, as a table's cell."""
    found: list[str] = []
    while (line := lines[number - 2].strip()).startswith("#") and not line.startswith("# ---"):
        found.insert(0, line.removeprefix("#").strip())
        number -= 1
    return " ".join(found).replace("|", "\\|")


def describe_default(arguments: list[ast.expr]) -> str:
    if not arguments:
        return ""
    value = arguments[0]
    if isinstance(value, ast.Constant):
        return f"`{value.value}`"
    text = ast.unparse(value.args[0] if isinstance(value, ast.Call) and ast.unparse(value.func) == "str" else value)
    return f"`{text}`"


def build_configuration_page() -> str:
    """Return the table of the fields of `dailytrain train`, from its parser."""
    from trainer.cli import reference
    from trainer.cli.main import COMMANDS

    page = """# Configuration of a training run

Give these fields to `dailytrain train` as flags, or in a TOML or JSON file with `--config`, where a dot begins a table.
Flags override the file, the file overrides a preset (`dailytrain presets`). `config` in the description of a pull
request takes the sections `model`, `recipe` and `train`. "Computed" means that the run chooses and records a value.

|field|value|meaning|
|---|---|---|
"""
    parser = reference.find_parser(dict(reference.iterate_commands(COMMANDS))["train"])
    for action in reference.list_flags(parser, with_fields=True):
        value, meaning = reference.describe_value(action), reference.describe_meaning(action)
        page += f"|{reference.describe_flag(action)}|{value}|{meaning}|\n"
    return page


def build_endpoints_page() -> str:
    """Return the table of the public API's endpoints, from its OpenAPI document."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    import django

    django.setup()
    from leaderboard.api import api

    page = """# Endpoints of the API

[The API](api.md) explains pages, ETags and limits. `/api/v1/docs` on every site shows all parameters and responses.

|method|address|parameters|answer|
|---|---|---|---|
"""
    for path, operations in api.get_openapi_schema()["paths"].items():
        for method, operation in operations.items():
            queries = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
            text = (operation.get("description") or f"{operation['summary']}.").split("\n\n")[0]
            cells = (method.upper(), f"`{path}`", ", ".join(f"`{name}`" for name in queries), " ".join(text.split()))
            page += f"|{'|'.join(cells)}|\n"
    return page


PAGES: dict[str, Callable[[], str]] = {
    "settings": build_settings_page,
    "configuration": build_configuration_page,
    "endpoints": build_endpoints_page,
}


def main() -> None:
    for name, build in PAGES.items():
        (ROOT / "docs" / "reference" / f"{name}.md").write_text(build(), encoding="utf-8")


if __name__ == "__main__":
    main()
