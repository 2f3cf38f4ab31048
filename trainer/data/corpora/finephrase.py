"""`finephrase`: FineWeb-Edu rephrased by a small model in four formats, streamed from the Hugging Face Hub.

arXiv 2604.13977: 1,354,044,711 texts, 486,367,076,933 tokens. The column `text` has the page that was rephrased; the
rephrased text is the first of `rollout_results`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.data.corpora import CorpusInfo
from trainer.data.corpora.hub import HubSource


def get_rephrased_text(record: Mapping[str, Any]) -> str:
    results = record["rollout_results"]
    return str(results[0]["text"] or "") if results else ""


SOURCE = HubSource(
    name="finephrase",
    repository="HuggingFaceFW/finephrase",
    revision="78cf4a5ed0099214979c094c963e699c19163838",
    parts={name: name for name in ("faq", "math", "table", "tutorial")},
    columns=("id", "rollout_results"),
    read_text=get_rephrased_text,
)
INFO = CorpusInfo(
    license="ODC-By 1.0",
    size="486 billion tokens in four formats",
    source=f"{SOURCE.repository}@{SOURCE.revision}",
)
build_corpus = SOURCE.build_corpus
