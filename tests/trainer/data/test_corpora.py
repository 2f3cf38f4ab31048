"""The list of corpora, and those of this installation's Python: documentation, library, two packages."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from trainer.cli.prepare import main
from trainer.data.corpora import KINDS, describe_corpora, find_corpus, open_corpus, python_docs, python_packages
from trainer.data.corpora.finephrase import get_rephrased_text
from trainer.errors import CorpusError
from trainer.protocol.files import hash_file


def test_list_prints_every_corpus_with_its_license(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(describe_corpora()) == set(KINDS)
    assert all(info.license and info.size and info.source for info in describe_corpora().values())
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}\n" in printed for name in KINDS)
    assert "CC BY-NC 4.0" in printed


def test_corpora_of_the_hub_are_pinned_and_their_parts_differ() -> None:
    for name in ("climbmix", "dclm-baseline", "finephrase", "fineweb-edu"):
        assert re.fullmatch("[0-9a-f]{40}", str(find_corpus(name).fingerprint()["revision"]))
    small, large = (find_corpus(f"fineweb-edu:sample-{size}").fingerprint() for size in ("10BT", "100BT"))
    assert small != large
    assert find_corpus("fineweb-edu").fingerprint() == small
    record = {"id": "a", "text": "the page", "rollout_results": [{"text": "the rephrased page"}]}
    assert get_rephrased_text(record) == "the rephrased page"
    assert get_rephrased_text({"rollout_results": []}) == ""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("wikipedia", "files, finephrase, fineweb-edu, python-docs"),
        ("fineweb-edu:sample-1T", "no corpus fineweb-edu:sample-1T; known: .*fineweb-edu:sample-100BT"),
        ("slimpajama:main", "OWNER/NAME@REVISION"),
        ("python-docs:tutorial", "python-docs takes no argument"),
        ("python-packages:3.12", "takes no argument"),
    ],
)
def test_unknown_corpus_or_part_is_rejected_with_the_known(name: str, reason: str) -> None:
    with pytest.raises(CorpusError, match=reason):
        open_corpus(name)


DOCS_SHA256 = "dd38bc8716dbc85510b1603272e63eed4a04cb4cc9b4b23990c3d9edf10e01eb"


def test_python_docs_have_the_same_hash_on_every_machine() -> None:
    assert find_corpus("python-docs").fingerprint() == {"files": [["python_docs.jsonl.xz", DOCS_SHA256]]}
    assert hash_file(python_docs.FILE) == DOCS_SHA256
    assert python_docs.FILE.is_relative_to(REPOSITORY / "trainer"), "it is part of the package"


def test_changed_file_or_other_version_of_a_package_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(str(metadata.distribution("networkx").locate_file("")))
    for name in ("networkx", "networkx-3.6.1.dist-info"):
        shutil.copytree(site / name, tmp_path / name)
    monkeypatch.syspath_prepend(tmp_path)
    assert find_corpus("python-packages").fingerprint() == {"sha256": python_packages.SHA256}
    (tmp_path / "networkx" / "convert.py").write_text("patched = True\n")
    with pytest.raises(CorpusError, match=r"changed .*: pip install networkx==3\.6\.1 sympy==1\.14\.0"):
        find_corpus("python-packages").fingerprint()
    about = tmp_path / "networkx-3.6.1.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("Version: 3.6.1", "Version: 3.6"))
    with pytest.raises(CorpusError, match=r"networkx 3\.6 is installed: pip install"):
        find_corpus("python-packages")
