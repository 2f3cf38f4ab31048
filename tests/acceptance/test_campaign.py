"""A campaign from real documents to a dataset on the Hub, with volunteers that crash, freeze and cheat.

Every chunk of every document is published once in every style, or listed as set aside with a reason.
The suite uses thirty pages of C4 and a few pages of Gutenberg's books; `make chaos-rephrase` runs longer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.campaign_processes import (
    BAD,
    C4,
    GUTENBERG,
    make_sources,
    read_campaign_state,
    read_published_files,
    run_volunteers,
    start_campaign,
)
from tests.support import hub_server
from tests.support.live_site import LiveSite, database
from tests.support.waits import WAIT_SECONDS
from trainer.rephrase.checks import REASONS, check_output

SECONDS = float(os.environ.get("REPHRASE_SECONDS", "8"))
HONEST = int(os.environ.get("REPHRASE_HONEST", "2"))
BOOKS = int(os.environ.get("REPHRASE_BOOKS", "2"))
SLICES = int(os.environ.get("REPHRASE_SLICES", "5"))
STYLES = tuple(os.environ.get("REPHRASE_STYLES", "medium qa").split())
PACE = float(os.environ.get("REPHRASE_PACE", "0.5"))
"""Seconds per batch of an honest back end."""
SEED = int(os.environ.get("CHAOS_SEED", "1"))
SPACE = re.compile(r"\s+")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(
        not (C4.exists() and GUTENBERG.exists()),
        reason=f"the real documents are not at {C4.parents[1]} (DAILYTRAIN_DATA)",
    ),
]


@pytest.mark.timeout(4 * SECONDS + 3600)
def test_campaign_with_faulty_volunteers_publishes_each_chunk_once(tmp_path: Path) -> None:
    with database(tmp_path) as address, hub_server.run_hub_server() as hub:
        site = LiveSite(tmp_path, address)
        documents = make_sources(tmp_path / "files", BOOKS, SLICES)
        try:
            start_campaign(site, hub, STYLES)
            with run_volunteers(site, HONEST, SEED, PACE) as honest:
                site.wait(lambda: read_campaign_state(site)["kept"], "the first text")
                honest.inject_fault("kill", honest.volunteers[-1])  # while it holds packets
                honest.inject_faults(SECONDS, pause=3 / HONEST)
                for volunteer in honest.volunteers:
                    volunteer.restart(is_thawed=True)
                site.wait(lambda: read_published_files(hub), "the dataset to be complete", WAIT_SECONDS + 3 * SECONDS)
        finally:
            site.stop_all()
        found, files = read_campaign_state(site), read_published_files(hub)
        site.stop_programs()
    rows = read_dataset(files, tmp_path)
    check_sources(found, documents)
    aside = check_complete(found, rows, files)
    check_texts(rows)
    check_bans(found, rows)
    assert found["assignments"]["released"] > 0, "no volunteer was killed while it held packets"
    print(  # noqa: T201
        f"{len(documents)} documents, {len(rows)} rows, {aside} set aside; {dict(honest.fault_counts)}; "
        f"{found['assignments']}; { {name: found['volunteers'][name][1:] for name in BAD} }; "
        f"{Counter(state for _, state in found['kept'])}"
    )


def read_dataset(files: dict[str, bytes], folder: Path) -> list[dict[str, Any]]:
    """Verify every checksum, then read the dataset with `datasets`."""
    from datasets import load_dataset

    manifest = json.loads(files["manifest.json"])
    for shard in manifest["shards"]:
        assert hashlib.sha256(files[shard["name"]]).hexdigest() == shard["sha256"]
    assert {shard["name"] for shard in manifest["shards"]} == {name for name in files if name.startswith("data/")}
    assert hashlib.sha256(files["set_aside.jsonl"]).hexdigest() == manifest["set_aside"]["sha256"]
    for path, content in files.items():
        (folder / "got" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "got" / path).write_bytes(content)
    rows = list(load_dataset(str(folder / "got"), split="train", cache_dir=str(folder / "cache")))
    assert len(rows) == manifest["rows"] == sum(shard["rows"] for shard in manifest["shards"])
    return rows


def check_sources(found: dict[str, Any], documents: list[str]) -> None:
    """Check that the packets contain each document once, word for word, and that omitted documents are counted."""
    assert found["source_error"] == ""
    texts: dict[int, list[str]] = {}
    for row, first, _, chunks in found["packets"]:
        assert first == len(texts.setdefault(row, []))
        texts[row] += chunks
    for row, chunks in texts.items():
        assert remove_spaces(" ".join(chunks)) == remove_spaces(documents[row])
    assert len(texts) + sum(found["dropped"].values()) == len(documents)


def remove_spaces(text: str) -> str:
    return SPACE.sub("", text)


def check_complete(found: dict[str, Any], rows: list[dict[str, Any]], files: dict[str, bytes]) -> int:
    """Check that each chunk is published once per style or set aside with a reason; return how many are set aside."""
    sources = {
        (row, first + index): text for row, first, _, chunks in found["packets"] for index, text in enumerate(chunks)
    }
    wanted = Counter((*chunk, style) for chunk in sources for style in STYLES)
    aside = [json.loads(line) for line in files["set_aside.jsonl"].splitlines()]
    assert all(one["reasons"] and set(one["reasons"]) <= {*REASONS, "lost", "withdrawn"} for one in aside)
    assert Counter((one["row"], one["chunk"], one["style"]) for one in (*rows, *aside)) == wanted
    unwritable = [set(one["reasons"]) for one in aside if "unwritable" in one["document"]]
    assert unwritable
    assert all(reasons <= {"copied", "repetitive"} for reasons in unwritable)
    assert len(aside) < len(rows) / 4, "too many chunks are set aside"
    assert all(one["source"] == sources[one["row"], one["chunk"]] for one in rows)
    return len(aside)


def check_texts(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert hashlib.sha256(row["text"].encode()).hexdigest() == row["sha256"]
        assert hashlib.sha256(row["source"].encode()).hexdigest() == row["source_sha256"]
        assert check_output(row["source"], row["style"], row["text"], language="en").accepted
    assert len({row["sha256"] for row in rows}) == len(rows)


def check_bans(found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Check that exactly the bad volunteers are banned, and that none of their texts is published."""
    volunteers = found["volunteers"]
    assert {name for name, (_, state, _) in volunteers.items() if state == "banned"} == set(BAD)
    assert not {volunteers[name][0] for name in BAD} & {row["volunteer"] for row in rows}
