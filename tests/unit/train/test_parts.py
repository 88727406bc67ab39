"""Parts that are dealt anew: equal shares of parts for any number of workers, and nobody else's business is touched."""

from __future__ import annotations

import numpy as np
import pytest

from partita.config import Config
from partita.core.mesh import Mesh
from partita.testing.graphs import small_random_store
from partita.train.parts import dealt_offsets, with_dealt_parts


@pytest.mark.parametrize(
    ("offsets", "owners", "expected"),
    [
        ([0, 10, 30], 1, [0, 30]),
        ([0, 10, 30], 2, [0, 10, 30]),
        ([0, 10, 30], 3, [0, 6, 16, 30]),  # a third of the parts is two thirds of the first one
        ([0, 10, 30], 4, [0, 5, 10, 20, 30]),
        ([0, 10, 30, 31], 2, [0, 20, 31]),
        ([0, 0, 7, 7], 2, [0, 3, 7]),
        ([0, 1, 2], 5, [0, 0, 0, 1, 1, 2]),
        ([0, 10, 20, 30, 40], 2, [0, 20, 40]),
    ],
)
def test_every_worker_gets_as_many_parts(offsets, owners, expected) -> None:
    found = dealt_offsets(np.array(offsets, dtype=np.int64), owners)
    assert found.dtype == np.int64
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("parts", "hosts", "workers", "settings", "dealt"),
    [
        (2, 1, 3, {"strategy": "gsplit"}, 3),
        (4, 1, 3, {"strategy": "auto"}, 3),
        (3, 1, 3, {"strategy": "gsplit"}, 3),
        (1, 1, 3, {"strategy": "gsplit"}, 3),
        (1, 1, 3, {"strategy": "gsplit", "deal_parts": False}, 3),  # otherwise it would be refused
        (1, 1, 3, {"strategy": "data,source", "deal_parts": False}, 3),
        (1, 1, 3, {"strategy": "auto"}, 1),
        (1, 1, 3, {"strategy": "nfp"}, 1),
        (1, 1, 3, {"strategy": "gdp"}, 1),
        (1, 2, 2, {"strategy": "data@hosts+gsplit@workers"}, 4),
        (2, 1, 1, {"strategy": "gsplit"}, 2),
        (2, 2, 2, {"strategy": "data@hosts+gsplit@workers"}, 2),  # one part for each worker of a host
        (2, 2, 2, {"strategy": "auto"}, 2),
        (2, 2, 2, {"strategy": "gsplit"}, 4),
        (3, 2, 2, {"strategy": "data@hosts+gsplit@workers"}, 4),
        (2, 1, 3, {"strategy": "gsplit", "deal_parts": False}, 2),
        (4, 1, 3, {"strategy": "gdp", "views": "cyclic"}, 4),
    ],
)
def test_where_the_numbers_differ(tmp_path, parts, hosts, workers, settings, dealt) -> None:
    whole = small_random_store(tmp_path / "g", 60, 300)
    store = whole.with_({"part_offsets": np.arange(parts + 1) * 60 // parts})
    config = Config.make({"layers": 2, "deal_parts": True, **settings})
    found = with_dealt_parts(store, config, Mesh.of(0, hosts * workers, workers))
    assert found.num_parts == dealt
    assert found.part_offsets[-1] == 60
    assert found.fingerprint == store.fingerprint
