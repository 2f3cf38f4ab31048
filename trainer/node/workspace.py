"""The folder of one lease, removed when the lease is over.

    work/<lease>/release    the site's release: what trusted code runs from
    work/<lease>/source     the release overlaid with the entry: what the sandbox runs from
    work/<lease>/out        what the job writes (a training's run folder)
    work/<lease>/run        what the scorer reads
    work/<lease>/base       the run whose weights a training starts from
    work/<lease>/graph      the traced architecture that is trained
    work/<lease>/scratch    temporary files of trusted code

A folder that exists when an agent starts is a lease that the previous agent held when it was killed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class Workspace:
    def __init__(self, home: Path, lease: int) -> None:
        self.root = home / "work" / str(lease)
        self.release = self.root / "release"
        self.source = self.root / "source"
        self.out = self.root / "out"
        self.run = self.root / "run"
        self.base = self.root / "base"
        self.graph = self.root / "graph"
        self.scratch = self.root / "scratch"
        self.config = self.root / "config.json"
        self.output = self.root / "output.log"

    def create(self) -> None:
        remove_folder(self.root)
        for folder in (self.release, self.source, self.out, self.run, self.base, self.graph, self.scratch):
            folder.mkdir(parents=True)

    def remove(self, keep_folder: bool = False) -> None:
        """Remove it. `keep_folder`: leave an empty folder, so that the next agent reports the lease to the server."""
        remove_folder(self.root)
        if keep_folder:
            self.root.mkdir()


def remove_folder(folder: Path) -> None:
    """Remove a folder, also without permission for its subfolders; links are removed, not followed."""
    for parent, folders, _ in os.walk(folder):
        for path in (Path(parent, name) for name in folders):
            if not path.is_symlink():
                path.chmod(0o700)  # before os.walk enters it
    if folder.exists():
        shutil.rmtree(folder)


def find_abandoned_leases(home: Path) -> list[int]:
    """Return the leases that a killed agent left behind."""
    work = home / "work"
    return sorted(int(path.name) for path in work.iterdir() if path.name.isdigit()) if work.is_dir() else []
