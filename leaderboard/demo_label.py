"""The label of demo data: runs that were trained on the node of this name, shown with this text on every page."""

from __future__ import annotations

NODE = "demo-node"
WORDS = (
    "real small training runs of this project, ten seconds each, laid out as one entry a night. "
    "Gains at this size say nothing about large models."
)
