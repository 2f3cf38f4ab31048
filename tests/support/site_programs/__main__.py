"""One process with a live site's settings and database, for `LiveSite.call` and `LiveSite.manage`.

It reads requests and writes answers, a line of JSON each. Starting Django takes seconds: tests that watch a site would
otherwise spend most of their time on it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
from typing import Any


def run_request(request: dict[str, Any]) -> Any:
    """Call a function of this package, such as "pool.read_pool", or run a management command."""
    from django.core.management import call_command

    if "command" in request:
        return call_command(*request["command"])
    module, name = request["function"].split(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)(**request["arguments"])


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what child processes print is no answer
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    import django
    from django.db import connections

    django.setup()
    for line in sys.stdin:
        request, printed = json.loads(line), io.StringIO()
        answer: dict[str, Any] = {}
        try:
            with contextlib.redirect_stdout(printed):
                answer["result"] = run_request(request)
        except (Exception, SystemExit):
            answer["error"] = traceback.format_exc()
        connections.close_all()
        answers.write(json.dumps({**answer, "printed": printed.getvalue()}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
