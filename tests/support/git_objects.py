"""Objects that git itself would refuse to write."""

from __future__ import annotations

import subprocess

from tests.leaderboard.conftest import Repository


def write_object(repository: Repository, kind: str, content: bytes) -> str:
    """Write an object without any check and return its id."""
    command = ["git", "hash-object", "-t", kind, "-w", "--stdin", "--literally"]
    written = subprocess.run(command, cwd=repository.path, input=content, capture_output=True, check=True)
    return written.stdout.decode().strip()


def commit_tree(repository: Repository, tree: str) -> str:
    """Commit a tree on top of HEAD and return its id; `main` is this commit."""
    sha = repository.git("commit-tree", tree, "-p", "HEAD", "-m", "A tree")
    repository.git("update-ref", "refs/heads/main", sha)
    return sha
