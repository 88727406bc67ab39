"""Blocks that a layer is measured on: they tell what its destinations, sources and edges take, each by itself."""

from __future__ import annotations

import numpy as np
import pytest
from typed_graphs import typed_store

from partita.comm.threads import ThreadGroups
from partita.config import Config
from partita.plan.measure_rates import measure_rates
from partita.plan.rates import PerBlock
from partita.testing.graphs import small_random_store

FIT = PerBlock.fitted


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    untyped = small_random_store(folder / "untyped", 3000, 30_000, num_features=8)
    return {"sage": untyped, "gat": untyped, "rgcn": typed_store(folder / "typed", 3000)}


@pytest.fixture
def measured(monkeypatch):
    """Destinations, sources and edges of the blocks of all fits: of seconds, then of bytes, for each layer."""
    found = []

    def noted(blocks, taken):
        found.append(blocks)
        return FIT(blocks, taken)

    monkeypatch.setattr(PerBlock, "fitted", noted)
    return found


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("model", ["sage", "gat", "rgcn"])
def test_rates_of_rough_times_hold_for_blocks_in_other_proportions(model, brief, stores, measured):
    """Of a block with parts of the rows of three others, which has more destinations than any that is drawn."""
    settings = {"fanout": "8,8", "hidden": 8, "batch_size": 128, "threads": 1}
    config = Config.make({"model": model, "layers": 2, **settings})
    measure_rates(ThreadGroups(1).contexts[0], stores[model], config, brief=brief)
    assert len(measured) >= 4
    random = np.random.default_rng(0)
    for blocks in measured[::2]:
        truth, off = PerBlock(0.2, *(1.0 / blocks.max(axis=0))), []  # all count about as much
        exact, asked = np.array([truth.of(block) for block in blocks]), blocks[0] * np.array([4, 1, 1])
        for _ in range(200):
            found = FIT(blocks, exact * np.exp(random.normal(0.0, 0.1, len(blocks))))
            off.append(abs(np.log(found.of(asked) / truth.of(asked))))
        assert np.exp(np.median(off)) < 1.25
        assert np.exp(np.quantile(off, 0.9)) < 1.7
