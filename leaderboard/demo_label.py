"""How a demo is told from what people did: on every page, by the node that its runs were trained on."""

from __future__ import annotations

NODE = "demo-node"
WORDS = (
    "real small training runs of this project, ten seconds each, laid out as one entry a night. "
    "Gains at this size say nothing about large models."
)
