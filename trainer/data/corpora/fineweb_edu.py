"""`fineweb-edu`: educational web pages, streamed from the Hugging Face Hub.

`fineweb-edu:sample-10BT` (the default): 9,672,101 pages, 28.5 GB on the wire, about 45 GB of text.
`fineweb-edu:sample-100BT`: about ten times as much. A limit stops the download early.
"""

from __future__ import annotations

from trainer.data.corpora import CorpusInfo
from trainer.data.corpora.hub import HubSource

SOURCE = HubSource(
    name="fineweb-edu",
    repository="HuggingFaceFW/fineweb-edu",
    revision="87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
    parts={"sample-10BT": "sample-10BT", "sample-100BT": "sample-100BT"},
)
INFO = CorpusInfo(
    license="ODC-By 1.0",
    size="10 or 100 billion tokens of GPT-2",
    source=f"{SOURCE.repository}@{SOURCE.revision}",
)
build_corpus = SOURCE.build_corpus
