from __future__ import annotations

import re

import pytest

from trainer.cli.prepare import main
from trainer.data.corpora import KINDS, describe_corpora, find_corpus
from trainer.data.corpora.finephrase import get_rephrased_text

HUB = ("climbmix", "dclm-baseline", "finephrase", "fineweb-edu")


def test_every_corpus_has_license_size_and_source() -> None:
    described = describe_corpora()
    assert set(described) == set(KINDS)
    assert all(info.license and info.size and info.source for info in described.values())
    assert "not for commercial use" in described["climbmix"].license


@pytest.mark.parametrize("name", HUB)
def test_corpus_of_hub_is_pinned_to_a_revision(name: str) -> None:
    assert re.fullmatch("[0-9a-f]{40}", str(find_corpus(name).fingerprint()["revision"]))


def test_parts_of_a_corpus_have_different_fingerprints() -> None:
    small, large = (find_corpus(f"fineweb-edu:sample-{size}").fingerprint() for size in ("10BT", "100BT"))
    assert small != large
    assert find_corpus("fineweb-edu").fingerprint() == small


def test_finephrase_text_is_the_rephrased_one() -> None:
    record = {"id": "a", "text": "the page", "rollout_results": [{"text": "the rephrased page"}]}
    assert get_rephrased_text(record) == "the rephrased page"
    assert get_rephrased_text({"rollout_results": []}) == ""


def test_list_prints_every_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}\n" in printed for name in KINDS)
    assert "CC BY-NC 4.0" in printed
