"""What layers take from parts: which of them are measured, and what is computed then."""

from __future__ import annotations

import pytest
import torch
from typed_graphs import typed_store

from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.config import Config
from partita.core.keys import StepKey
from partita.features.host import HostRows
from partita.parallel.block_worker import BlockWorker
from partita.parallel.inputs import Tiered
from partita.parallel.placements.data import Data
from partita.plan.measure_rates import measure_rates
from partita.plan.ways import measure_ways
from partita.setup.inputs import open_features
from partita.setup.model import named_model
from partita.setup.sampler import make_sampler
from partita.setup.topology import open_topology
from partita.testing.graphs import small_random_store

SEEDS = torch.arange(30)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", 200, 1500, num_features=12)


def measured(store, model: str, **settings):
    """Ways, and for each layer what the whole and the parts have come to, as often as they were computed."""
    config = Config.make({"model": model, "layers": 2, "fanout": "5,4", "hidden": 8, **settings}, where="test")
    made = named_model(config, store, 3).train()
    topology, column = open_topology(store, config), open_features(store, config)
    host = HostRows(column)
    inputs = Tiered(host, column, host.columns, topology.original)
    worker = BlockWorker(made, topology, inputs, make_sampler(config, Group.alone(), None), torch.float32)
    works, requests, key = [], SEEDS.to(topology.id_dtype), StepKey(3, 0, 0)
    for layer in (2, 1):
        work, requests = Data(worker).expand(layer, requests, key)
        works.insert(0, work)
    takes = iter(range(1, 100))

    def median(compute) -> float:
        compute()
        return float(next(takes))

    return measure_ways(worker, works, 1, median)


@pytest.mark.parametrize(
    ("model", "settings", "layers"),
    [
        # A second stands for each that was measured, in their order: the whole, states, rows, and columns of layer 1.
        ("sage", {}, {"states": (2.0, 5 / 4), "rows": (1.0, 1.0), "slices": (3.0, 1.0)}),
        ("gat", {"heads": 2}, {"states": (2.0, 6 / 5), "rows": (3.0, 7 / 5), "slices": (4.0, 1.0)}),
        ("gat", {"heads": 2, "attn_dropout": 0.5}, {"states": (1.0, 1.0), "rows": (1.0, 1.0), "slices": (2.0, 1.0)}),
    ],
)
def test_what_no_run_computes_is_not_measured(store, model, settings, layers):
    """Layers that cannot be computed from parts, and the ways that a layer does not have, count as the whole."""
    assert measured(store, model, **settings) == layers


def rates_of(context, store, settings, brief):
    return measure_rates(context, store, Config.make(settings, where="test"), brief=brief)


@pytest.mark.parametrize("brief", [True, False])
def test_rates_hold_them_for_every_layer(tmp_path, store, brief):
    """Of a typed graph layer 1, which takes encoded rows, is taken to be as layer 2."""
    settings = {"layers": 2, "fanout": "5,4", "hidden": 8, "batch_size": 16}
    context = ThreadGroups(1).contexts[0]
    found = rates_of(context, store, {**settings, "model": "sage"}, brief)
    assert found.ways.keys() == {"states", "rows", "slices"}
    assert all(each > 0 for of_way in found.ways.values() for each in of_way)
    typed = typed_store(tmp_path / "typed", parts=1)
    of_types = rates_of(context, typed, {**settings, "model": "rgcn"}, brief)
    assert len(of_types.ways["states"]) == 2
    assert of_types.ways["states"][0] == of_types.ways["states"][1] != 1.0
