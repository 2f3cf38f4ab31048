"""`python -m trainer.cli`: the same as `dailytrain`."""

from __future__ import annotations

from trainer.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
