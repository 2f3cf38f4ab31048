from __future__ import annotations

from pathlib import Path

import pytest

from trainer.data.dataset import Dataset


@pytest.fixture(scope="session")
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)
