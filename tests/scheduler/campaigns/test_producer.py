"""The producer: its filters and source formats, and that an interrupted run loses and repeats no row."""

from __future__ import annotations

import errno
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from scheduler import storage
from scheduler.campaigns import producer, quality, shards, sources, transitions
from scheduler.campaigns.models import Campaign, Packet, Paragraph, Shard
from scheduler.campaigns.transitions import CampaignError
from scheduler.models import Blob
from tests.support.volunteers import build_document, fill_campaign, make_campaign, start_volunteer

pytestmark = pytest.mark.processes


def get_documents(campaign: Campaign) -> list[str]:
    """Return the documents, joined from their packets."""
    parts: dict[int, list[str]] = {}
    for packet in campaign.packets.order_by("row", "part"):
        assert packet.first_chunk == len(parts.setdefault(packet.row, []))
        parts[packet.row] += packet.chunks
    return [" ".join(chunks) for chunks in parts.values()]


def test_short_repeated_and_unreadable_documents_are_dropped(db: None, settings: Any, tmp_path: Path) -> None:
    one, other = build_document(1), build_document(2)
    campaign = make_campaign(settings, tmp_path, [one, "Short.", one.upper(), f"{one}\n{other}"])
    with (tmp_path / "files" / "texts.jsonl").open("a") as file:
        file.write('not JSON\n{"other": 1}\n\n')
    campaign = fill_campaign(campaign)
    assert get_documents(campaign) == [one, other]
    assert campaign.dropped_counts == {"paragraphs": 2, "repeated": 1, "short": 1, "unreadable": 2}
    assert Paragraph.objects.filter(campaign=campaign).count() == 2
    german = "Der alte Mann ging am Morgen langsam über die Brücke und sah den Fluss unter sich fließen. " * 4
    english = "The old man slowly walked across the bridge in the morning and saw the river below him. " * 4
    campaign = fill_campaign(make_campaign(settings, tmp_path, [german, english], slug="english", language="en"))
    assert (campaign.dropped_counts, campaign.rows_read) == ({"language": 1}, 2)
    assert all("bridge" in packet.chunks[0] for packet in campaign.packets.all())


def test_quality_buckets_drop_untypical_documents(db: None, settings: Any, tmp_path: Path) -> None:
    good = [build_document(number) for number in range(8)]
    salad = ["".join(random.Random(number).choices("bcdfgxzq#@|~ ", k=600)) + str(number) for number in range(4)]
    campaign = fill_campaign(make_campaign(settings, tmp_path, good + salad, quality_buckets=["head", "middle"]))
    assert campaign.quality_model is not None
    assert campaign.dropped_counts["quality"] >= 4
    assert set(get_documents(campaign)) <= set(good)
    with pytest.raises(ValueError, match="too strict"):
        quality.train_quality_model([])


def test_producer_fills_between_low_and_high_mark(
    db: None, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "ROWS_PER_BATCH", 1)
    documents = [build_document(number) for number in range(30)]
    campaign = fill_campaign(make_campaign(settings, tmp_path, documents, low_mark=4, high_mark=8))
    waiting = campaign.packet_count
    assert 8 <= waiting < 16
    assert producer.produce_campaign(campaign.pk) == 0, "enough packets wait"
    Packet.objects.filter(pk__in=list(campaign.packets.values_list("pk", flat=True)[: waiting - 3])).update(
        state="done"
    )
    assert producer.produce_campaign(campaign.pk) > 0
    transitions.pause_campaign(campaign, "ada")
    Packet.objects.update(state="done")
    assert producer.produce_campaign(campaign.pk) == 0, "it is paused"


def test_source_files_resume_from_any_row(db: None, settings: Any, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    campaign = make_campaign(
        settings, tmp_path, [build_document(0), build_document(1)], dataset="*", drop_repeated=False
    )
    folder = tmp_path / "files"
    with gzip.open(folder / "more.json.gz", "wt") as file:
        file.writelines(json.dumps({"text": build_document(number)}) + "\n" for number in (2, 3))
    table = pyarrow.table({"text": [build_document(number) for number in (4, 5, 6)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=2)
    (folder / "z.txt").write_text(build_document(7))
    (folder / "ignored.bin").write_bytes(b"\0")
    producer.pin_files(campaign)
    all_rows = list(sources.iterate_rows(campaign))
    assert campaign.files == ["a.parquet", "more.json.gz", "texts.jsonl", "z.txt"]
    assert [row.text for row in all_rows] == [build_document(number) for number in (4, 5, 6, 2, 3, 0, 1, 7)]
    for index, row in enumerate(all_rows):
        campaign.cursor = {"file": row.file, "row": row.row}
        assert list(sources.iterate_rows(campaign)) == all_rows[index:]


def test_source_outside_its_folder_is_refused(db: None, settings: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("key")
    patterns = ("../*.txt", str(secret), "", "nothing/*.jsonl", "c4/**.jsonl")
    for number, pattern in enumerate(patterns):
        campaign = fill_campaign(make_campaign(settings, tmp_path, [], slug=f"s{number}", dataset=pattern))
        error = "c4/**.jsonl cannot be read: " if pattern == patterns[-1] else "REPHRASE_FILES"
        assert error in campaign.source_error
        assert campaign.files == []
    (tmp_path / "files" / "link.txt").symlink_to(secret)
    with pytest.raises(sources.SourceError):
        sources.find_local_files("*.txt")


def test_error_of_one_campaign_does_not_stop_others(
    db: None, settings: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = (make_campaign(settings, tmp_path, slug=slug) for slug in ("broken", "sound"))
    Campaign.objects.filter(pk=broken.pk).update(files=["texts.jsonl"], cursor=["not", "a", "cursor"])
    assert producer.produce_packets() == sound.packets.count() > 0
    assert f"produce_campaign failed for campaign {broken.pk}" in caplog.text
    start_volunteer("ada").rephrase(64)
    write_shard = shards.write_shard

    def write_some_shards(shard: Shard) -> bool:
        if shard.campaign_id == broken.pk:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_shard(shard)

    monkeypatch.setattr(shards, "write_shard", write_some_shards)
    Shard.objects.create(campaign=broken, number=0)
    assert shards.update_shards() == sound.shards.count() > 0
    assert f"update_campaign_shards failed for campaign {broken.pk}" in caplog.text


def test_damaged_source_file_is_reported_and_resumed(db: None, settings: Any, tmp_path: Path) -> None:
    campaign = make_campaign(settings, tmp_path, [], dataset="*.gz")
    whole = gzip.compress("".join(json.dumps({"text": build_document(n)}) + "\n" for n in range(3)).encode())
    (tmp_path / "files" / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    campaign = fill_campaign(campaign)
    assert "damaged" in campaign.source_error
    (tmp_path / "files" / "cut.jsonl.gz").write_bytes(whole)
    campaign = fill_campaign(campaign)
    assert (campaign.source_error, len(get_documents(campaign))) == ("", 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"styles": []}, "Styles must be"),
        ({"styles": ["loud"]}, "loud"),
        ({"styles": [["easy"]]}, "Styles must be"),
        ({"quality_buckets": ["best"]}, "Quality buckets"),
        ({"low_mark": 9, "high_mark": 3}, "low mark"),
        ({"prompt_version": 99}, "version 99"),
        ({"thresholds": {"easy": {"colour": 1}}}, "colour"),
    ],
)
def test_campaign_with_invalid_settings_does_not_start(
    db: None, settings: Any, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CampaignError, match=message):
        make_campaign(settings, tmp_path, **fields)


# --- several processes ------------------------------------------------------------------------------------------------


def test_concurrent_producers_create_each_packet_once(db: None, settings: Any, tmp_path: Path) -> None:
    campaign = make_campaign(settings, tmp_path, [build_document(number) for number in range(6)])
    producer.pin_files(campaign)
    batch = list(sources.iterate_rows(campaign))
    first, second = (Campaign.objects.get(pk=campaign.pk) for _ in range(2))
    assert producer.store_batch(first, batch, None)
    assert producer.store_batch(second, batch, None) is None
    assert get_documents(campaign) == [build_document(number) for number in range(6)]


def test_concurrent_shard_writers_use_separate_files(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    start_volunteer("ada").rephrase(64)
    shards.create_shard(campaign)
    shard = campaign.shards.get()
    store, paths = storage.store_local_file, []

    def store_after_other_writer(sha256: str, path: Path) -> Blob:
        paths.append(path)
        if len(paths) == 1:
            assert shards.write_shard(shard)
        return store(sha256, path)

    monkeypatch.setattr(storage, "store_local_file", store_after_other_writer)
    assert shards.write_shard(shard)
    assert len(set(paths)) == 2
    assert not any(path.exists() for path in paths)
    shard.refresh_from_db()
    assert shard.blob is not None
    with storage.open_blob(shard.blob) as file:
        assert parquet.read_table(file).num_rows == shard.rows > 0
