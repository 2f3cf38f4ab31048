"""Settings of torch.compile that are named differently in the supported versions of torch."""

from __future__ import annotations


def raise_recompile_limit(limit: int) -> None:
    """Let a function be compiled for `limit` kinds of arguments; torch's own limit is 8. For the whole process, since
    the argument of `torch.compile` is newer than 2.11."""
    import torch._dynamo  # 2 s: only where something is compiled

    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
