from __future__ import annotations

import re

import pytest

from trainer.cli.prepare import main
from trainer.data.corpora import KINDS, describe_corpora, find_corpus, open_corpus
from trainer.data.corpora.finephrase import get_rephrased_text
from trainer.errors import CorpusError


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
        ("python-library:3.12", "takes no argument"),
        ("python-packages:3.12", "takes no argument"),
    ],
)
def test_unknown_corpus_or_part_is_rejected_with_the_known(name: str, reason: str) -> None:
    with pytest.raises(CorpusError, match=reason):
        open_corpus(name)
