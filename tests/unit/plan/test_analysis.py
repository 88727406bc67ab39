"""What is said of the strategies in APT (Ma et al., section 3.3), on links that are made up, among 2 to 64 workers."""

from __future__ import annotations

import pytest
from made_up_machine import Machine, best, planned, seconds_of

import partita
from partita.parallel.strategies import STRATEGIES
from partita.testing.graphs import small_random_store

WORKERS = [2, 8, 64]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same graph in as many parts as there are workers."""
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "whole", 400, 4000, undirected=True, num_features=12)
    for workers in WORKERS:
        partita.partition(whole, folder / str(workers), parts=workers, algorithm="random")
    partita.partition(whole, folder / "2x2", parts="2x2", algorithm="random")
    partita.partition(whole, folder / "4x4", parts="4x4", algorithm="random")
    return {path.name: partita.open(path) for path in folder.iterdir() if path.name != "whole"}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("send", [1e-6, 1e-8], ids=["slow", "fast"])
def test_nothing_is_exchanged_where_everything_is_cached(stores, workers, send):
    plan = planned(stores[str(workers)], Machine(row=1e-9, send=send), cache="1GiB", workers=workers)
    assert best(plan).name == "gdp"
    assert plan.found[best(plan)].counts.rows_from[1:] == (0, 0, 0)


@pytest.mark.parametrize("workers", WORKERS)
def test_scattered_access_and_narrow_layers_are_for_snp(stores, workers):
    """Rows that are dear are read once, by their owners, and what is sent instead is narrow. Not so in wide layers."""
    narrow = seconds_of(planned(stores[str(workers)], Machine(row=1e-6, edge=0.0), hidden=4, workers=workers))
    assert narrow["snp"] < narrow["dnp"]
    assert narrow["snp"] < narrow["gdp"]
    dear = Machine(row=1e-6, send=1e-7, edge=0.0)
    wide = seconds_of(planned(stores[str(workers)], dear, hidden=256, workers=workers))
    assert wide["gdp"] < wide["snp"]


@pytest.mark.parametrize("workers", WORKERS)
def test_slices_of_columns_are_not_for_wide_layers(stores, workers):
    """What NFP sends grows with the hidden width and with the number of workers."""
    sent = {}
    for hidden in (8, 128):
        on = Machine(row=1e-7, send=1e-8)
        plan = planned(stores[str(workers)], on, hidden=hidden, workers=workers)
        sent[hidden] = next(plan.found[each].traffic for each in plan.found if each.name == "nfp")
        if hidden == 128:
            seconds = seconds_of(plan)
            assert best(plan).name != "nfp"
            assert seconds["nfp"] == max(seconds[name] for name in STRATEGIES)
    assert sent[128].forward == 16 * sent[8].forward


@pytest.mark.parametrize("shape", ["2x2", "4x4"])
def test_rows_stay_within_hosts_where_links_between_them_are_slow(stores, shape):
    """Computing once what a host's workers need is worth it; what crosses to another host is gradients only."""
    hosts = int(shape[0])
    on = Machine(send=0.0, far=1e-3, compute=1e-2, edge=0.0)
    plan = planned(stores[shape], on, hosts=hosts, workers=hosts)
    assert best(plan).axis == "workers"
    assert best(plan).placements[0] in ("destination", "feature")


@pytest.mark.parametrize("shape", ["2x2", "4x4"])
def test_rows_travel_between_hosts_where_that_is_what_is_fast(stores, shape):
    """Links that are unlike the other way round: hosts with a fast network, and workers that share a slow bus."""
    hosts = int(shape[0])
    on = Machine(send=1e-3, far=0.0, compute=1e-2, edge=0.0)
    plan = planned(stores[shape], on, hosts=hosts, workers=hosts)
    assert best(plan).axis == "hosts"
