"""`climbmix`: NVIDIA's ClimbMix as shuffled text, streamed from the Hugging Face Hub. Not for commercial use.

karpathy/climbmix-400b-shuffle: 6,543 files, the data of nanochat's record runs (arXiv 2504.13161).
"""

from __future__ import annotations

from trainer.data.corpora import CorpusInfo
from trainer.data.corpora.hub import HubSource

SOURCE = HubSource(
    name="climbmix",
    repository="karpathy/climbmix-400b-shuffle",
    revision="915333b4f8b8684f39aeaafea600fea6f43fb703",
    parts={"shuffled": "shard_*.parquet"},
    columns=("text",),
)
INFO = CorpusInfo(
    license="CC BY-NC 4.0: not for commercial use",
    size="400 billion tokens of GPT-2",
    source=f"{SOURCE.repository}@{SOURCE.revision}",
    public_results="nanochat, 24 layers: 0.718 bits per byte, CORE 0.2626 after 13.2 H100-hours",
)
build_corpus = SOURCE.build_corpus
