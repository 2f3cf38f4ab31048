"""`python -m trainer.scoring`: how a node's agent starts the scorer."""

from __future__ import annotations

import sys

from trainer.cli.score import main

if __name__ == "__main__":
    sys.exit(main())
