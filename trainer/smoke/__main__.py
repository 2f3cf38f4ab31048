"""`python -m trainer.smoke`: what a node starts."""

from __future__ import annotations

import sys

from trainer.cli.smoke import main

if __name__ == "__main__":
    sys.exit(main())
