"""What `manage.py run` and a rehearsal print while their site runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dailytrain.local_site import LocalSite, TrainingProgress
from tests.support import scene

TITLE = "Attention [/b] gate [tmp/x]"


@pytest.fixture
def site() -> LocalSite:
    local_site = LocalSite(8000)
    local_site.console = Console(file=io.StringIO(), width=120, force_terminal=True, highlight=False)
    return local_site


def read_output(site: LocalSite) -> str:
    assert isinstance(site.console.file, io.StringIO)
    return site.console.file.getvalue()


def test_message_with_brackets_is_printed_as_it_is(site: LocalSite) -> None:
    site.print_message(f"cannot read [/tmp/foo] of {TITLE}")
    assert f"cannot read [/tmp/foo] of {TITLE}" in read_output(site)


@pytest.mark.django_db
def test_progress_of_run_whose_title_has_brackets_shows_the_title(site: LocalSite) -> None:
    scene.create_training_run(scene.create_entry(scene.create_track(), TITLE), steps=10)
    with TrainingProgress(site.console) as progress:
        progress.show_training()
        progress.refresh()
    assert TITLE in read_output(site)
