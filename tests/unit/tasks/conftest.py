"""A task of every kind."""

from __future__ import annotations

import pytest

from partita.tasks.task import TASKS, Task
from partita.testing.graphs import small_random_store


@pytest.fixture(scope="package")
def tasks(tmp_path_factory) -> dict[str, Task]:
    """Of stores of random labels, by name; three classes or labels."""
    folder = tmp_path_factory.mktemp("tasks")
    widths = {"classes": 3, "multilabel": 3, "regression": 1}
    stores = {
        name: small_random_store(folder / name, 60, 200, num_classes=width, task=name) for name, width in widths.items()
    }
    return {name: TASKS.find(name)(store) for name, store in stores.items()}
