"""`dclm-baseline`: a sample of DCLM-baseline, web pages chosen by a classifier, streamed from the Hugging Face Hub.

HuggingFaceFW/dclm_100BT: 100 files of the data of DataComp-LM (arXiv 2406.11794).
"""

from __future__ import annotations

from trainer.data.corpora import CorpusInfo
from trainer.data.corpora.hub import HubSource

SOURCE = HubSource(
    name="dclm-baseline",
    repository="HuggingFaceFW/dclm_100BT",
    revision="01022d378d944de6deeb1c79d08fecb4d27b2c6f",
    parts={"sample-100BT": "data/*.parquet"},
)
INFO = CorpusInfo(
    license="ODC-By 1.0; DCLM-baseline itself is CC BY 4.0",
    size="about 100 billion tokens",
    source=f"{SOURCE.repository}@{SOURCE.revision}",
)
build_corpus = SOURCE.build_corpus
