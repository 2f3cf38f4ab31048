"""The review of a commit: complete diffs and safe rendering of notebooks."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.models import Track
from leaderboard.submissions import diffs, intake, notebook_cells
from leaderboard.submissions import review as vetting
from leaderboard.submissions.notebook_cells import NotebookError
from tests.leaderboard.conftest import Repository

pytestmark = pytest.mark.processes

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 20).decode()


# --- diffs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diff_repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    repository = Repository(tmp_path_factory.mktemp("diffs"))
    repository.git("init", "--quiet", "-b", "main")
    return repository


def build_diff(repository: Repository, before: dict[str, list[str]], after: dict[str, list[str]]) -> str:
    shas = []
    for files in (before, after):
        for path in repository.path.glob("*"):
            if path.name != ".git":
                path.unlink()
        shas.append(repository.commit("x", {name: "\n".join(lines).encode() for name, lines in files.items()}))
    return repository.git("diff", "--no-renames", *shas)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a.py": ["1", "2", "3"]}, {"a.py": ["1", "diff --git a/other b/other", "@@ -1 +1 @@", "3"]}),
        ({"é b.py": ["1"]}, {"é b.py": ["--- a/x", "+++ b/x", "\u2028\x0c"], 'q"\\.py': ["new"]}),
        ({'q"': ["1"]}, {'q"': ["2"], '"': ["new"]}),
        ({"gone": ["1", "2"]}, {"came": ["-1", "+2", "", "x"]}),
    ],
)
def test_parsed_diff_has_all_files_and_lines_of_git(
    diff_repository: Repository, before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    files = diffs.parse_diff(build_diff(diff_repository, before, after))
    assert {file.path for file in files} == {name for name in before | after if before.get(name) != after.get(name)}
    for file in files:
        new, old = set(after.get(file.path, [])), set(before.get(file.path, []))
        assert {line.text for line in file.lines() if line.kind == "added"} >= new - old
        assert {line.text for line in file.lines() if line.kind == "removed"} >= old - new


@given(st.text("+- @\\\ndifgab/123,\x00\u202e", max_size=300))
def test_parsed_diff_of_any_text_raises_no_error(text: str) -> None:
    for file in diffs.parse_diff(f"diff --git a/x b/x\n{text}"):
        assert all(diffs.escape_hidden(line.text) == line.visible_text for line in file.lines())


# --- notebooks -------------------------------------------------------------------------------------------------------


def build_notebook(*cells: dict[str, object]) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)}).encode()


def build_code_cell(source: str, *outputs: dict[str, object]) -> dict[str, object]:
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def test_notebook_text_cell_is_rendered_without_html_or_images() -> None:
    text = "# A <b onclick=x>title</b>\n\n![p](https://elsewhere/p.png) [go](javascript:alert(1)) <script>x</script>"
    (cell,) = notebook_cells.parse_cells(build_notebook({"cell_type": "markdown", "source": [text]}))
    assert "<h1>A &lt;b onclick=x&gt;title&lt;/b&gt;</h1>" in cell.html
    assert not any(word in cell.html for word in ("<img", "<script", "<b ", 'href="javascript'))


def test_notebook_outputs_are_text_or_valid_images() -> None:
    outputs: list[dict[str, object]] = [
        {"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n", "\u202e"]},
        {"output_type": "display_data", "data": {"image/png": PNG, "text/plain": "<Figure>"}},
        {"output_type": "display_data", "data": {"image/png": base64.b64encode(b"<svg>").decode(), "text/plain": "f"}},
        {"output_type": "execute_result", "data": {"text/html": "<script>x</script>"}},
        {"output_type": "error", "ename": "E", "evalue": "e", "traceback": ["\x1b[0;31mE\x1b[0m: e"]},
    ]
    (cell,) = notebook_cells.parse_cells(build_notebook(build_code_cell("1", *outputs)))
    assert [(output.kind, output.text) for output in cell.outputs] == [
        ("text", "red\n⟨U+202E⟩"),
        ("picture", f"data:image/png;base64,{PNG}"),
        ("text", "f"),
        ("unshown", "text/html"),
        ("error", "E: e"),
    ]


@pytest.mark.parametrize("contents", [b"", b"{}", b"[1]", b'{"nbformat": 3, "cells": []}', b"\xff", b"[" * 100_000])
def test_invalid_notebook_is_refused(contents: bytes) -> None:
    with pytest.raises(NotebookError, match="The notebook is not"):
        notebook_cells.parse_cells(contents)


KEYS = ["cell_type", "source", "outputs", "output_type", "text", "data", "traceback", "text/plain", "image/png"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_notebook_with_any_cells_raises_no_other_error(cells: list[object]) -> None:
    contents = json.dumps({"nbformat": 4, "cells": cells}).encode()
    assert all(cell.html is not None for cell in notebook_cells.parse_cells(contents))


# --- entries ---------------------------------------------------------------------------------------------------------


def test_entry_review_lists_executed_files_first(main_repository: Repository, track: Track) -> None:
    main_repository.git("checkout", "--quiet", "-b", "idea")
    files: dict[str, str | bytes] = {"trainer/models/gpt.py": "import socket\n", "trainer/train.py": "import os\n"}
    files |= {"a.txt": "x\u202e", "notebooks/n.ipynb": build_notebook(build_code_cell("!ls"))}
    main_repository.commit("Idea", files)
    entry = intake.submit_entry(str(main_repository.path), "idea", "Idea", "gpt", track)
    review = vetting.review_entry(entry)
    reviewed_files = [(reviewed.file.path, reviewed.is_open) for reviewed in review.files]
    assert reviewed_files == [
        ("trainer/models/gpt.py", True),
        ("notebooks/n.ipynb", True),
        ("trainer/train.py", False),
        ("a.txt", False),
    ]
    assert vetting.get_review_summary(entry) == vetting.get_review_summary(entry)
