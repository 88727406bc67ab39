"""Machines that are not here: their files, what follows from them, and plans for them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_machine import SETTINGS, planned
from made_up_machine import Machine as MadeUp
from torch.utils.flop_counter import FlopCounterMode

import partita
from partita.config import Config
from partita.core.errors import ConfigError, ResourceError
from partita.core.mesh import Mesh
from partita.core.plan import Plan
from partita.core.records import TIERS, Block
from partita.nn.layers import GAT, GCN, GIN, GINE, MLP, SAGE, GraphConv, Layer
from partita.nn.layers.residual import Residual
from partita.plan.described import described_links, layer_rates
from partita.plan.explain import why
from partita.plan.links import Links
from partita.plan.machine import Machine
from partita.plan.rates import Rates
from partita.testing.graphs import small_random_store

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "machines").glob("*.yaml"))
VALUES: dict[str, Any] = {
    "name": "made up",
    "processors": 8,
    "processor": {
        "products": "4 TFLOP/s",
        "memory_bandwidth": {"value": "200 GB/s", "source": "data sheet"},
        "memory": "16 GiB",
        "layer_time": "500 us",
        "sampling": "50 Medges/s",
    },
    "processor_link": {"latency": "20 us", "bandwidth": "5 GB/s"},
    "host_link": {"bandwidth": "12 GB/s", "shared_by": 2},
    "host_memory": "300 GB",
    "network": {"latency": "50 us", "bandwidth": "100 Gbit/s"},
}
FAST = 1e30


def made(changes: dict[str, Any] | None = None) -> Machine:
    """With other values by key, such as ``processor.memory``; ``None``: without it."""
    values = deepcopy(VALUES)
    for key, value in (changes or {}).items():
        *path, last = key.split(".")
        record = values
        for name in path:
            record = record[name]
        if value is None:
            del record[last]
        else:
            record[last] = value
    return Machine.make(values, "m.yaml")


class TestFile:
    def test_values_are_in_their_units_with_their_sources(self):
        found = made({"processor.products": 1.5e12, "processor.sampling": "5e7"})
        assert found.processor.products.value == 1.5e12
        assert found.processor.memory_bandwidth.value == 2e11
        assert found.processor.memory.value == 16 * 2**30
        assert found.processor.layer_time.value == pytest.approx(5e-4)
        assert found.processor.sampling.value == 5e7
        assert found.host_memory.value == 3e11
        assert found.network is not None
        assert found.network.bandwidth.value == 1.25e10
        stated = found.to_json()["values"]
        assert stated["processor.memory_bandwidth"] == {
            "value": 2e11, "unit": "B/s", "given": "200 GB/s", "source": "data sheet",
        }  # fmt: skip
        assert stated["processor.products"]["given"] == "1500000000000.0 FLOP/s"
        assert stated["processor.memory"]["source"] is None
        assert len(stated) == 11

    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_every_value_of_the_examples_has_a_source(self, path):
        values = Machine.load(path).quantities()
        assert len(values) == 11
        assert [key for key, each in values.items() if not each.source] == []

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"speed": 3}, "m.yaml, speed: unknown key"),
            ({"processor.memry": "1 GB"}, "m.yaml, processor.memry: unknown key. Did you mean 'memory'?"),
            ({"host_link.shared": 2}, "m.yaml, host_link.shared: unknown key. Did you mean 'shared_by'?"),
            ({"processor.memory": None, "processor.memry": 3}, "m.yaml, processor.memry: unknown key. Did you mean"),
            ({"processor.memory": None}, "m.yaml, processor.memory: is missing"),
            ({"processor": None}, "m.yaml, processor: is missing"),
            ({"name": None}, "m.yaml, name: is missing"),
            ({"processor.memory": "16 GB/s"}, "m.yaml, processor.memory: '16 GB/s' is not in B"),
            ({"processor.products": "4 TB/s"}, "m.yaml, processor.products: '4 TB/s' is not in FLOP/s"),
            ({"network.latency": "1 hour"}, "m.yaml, network.latency: '1 hour' is not in s"),
            ({"network.bandwidth": True}, "m.yaml, network.bandwidth: True is not in B/s"),
            ({"network.bandwidth": [1]}, "m.yaml, network.bandwidth: [1] is not in B/s"),
            ({"host_memory": 0}, "m.yaml, host_memory: 0 is not a finite number above 0"),
            ({"host_memory": float("inf")}, "m.yaml, host_memory: inf is not a finite number above 0"),
            ({"host_memory": float("nan")}, "m.yaml, host_memory: nan is not a finite number above 0"),
            ({"host_memory": -3}, "m.yaml, host_memory: -3 is not a finite number above 0"),
            ({"host_memory": "1e999 GB"}, "m.yaml, host_memory: 1e999 GB is not a finite number above 0"),
            ({"host_memory": {"value": 3, "unit": "GB"}}, "m.yaml, host_memory: unknown key 'unit'"),
            ({"host_memory": {"source": "me"}}, "m.yaml, host_memory: 'value' is missing"),
            ({"host_memory": {"value": 3, "source": 4}}, "m.yaml, host_memory: 'source' is not a text"),
            ({"processors": 0}, "m.yaml, processors: input should be greater than or equal to 1"),
            ({"processors": "8"}, "m.yaml, processors: input should be a valid integer"),
            ({"network": 3}, "m.yaml, network: input should be"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_key(self, changes, message):
        with pytest.raises(ConfigError) as error:
            made(changes)
        assert str(error.value).startswith(message)

    def test_a_latency_may_be_nothing(self):
        assert made({"network.latency": 0}).quantities()["network.latency"].value == 0.0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("- a\n", "is not a mapping"),
            ("a: [", "is not valid YAML"),
            ("", "is not a mapping"),
            ("1: 2", "is not a mapping"),
        ],
    )
    def test_files_that_are_something_else(self, tmp_path, text, message):
        (tmp_path / "m.yaml").write_text(text)
        with pytest.raises(ConfigError) as error:
            Machine.load(tmp_path / "m.yaml")
        assert message in str(error.value)
        assert str(tmp_path / "m.yaml") in str(error.value)

    def test_no_file(self, tmp_path):
        with pytest.raises(ConfigError, match="there is no such file"):
            Machine.load(tmp_path / "m.yaml")
        with pytest.raises(ConfigError, match="cannot be read"):
            Machine.load(tmp_path)


def block_of(destinations: int, sources: int, edges_each: int) -> Block:
    ids = torch.arange(sources)
    edges = destinations * edges_each
    return Block(
        dst=ids[:destinations], src=ids, indptr=torch.arange(0, edges + 1, edges_each),
        indices=(torch.arange(edges) % sources).int(), dst_original=ids[:destinations],
        weight=torch.ones(edges), self_weight=torch.ones(destinations),
    )  # fmt: skip


LAYERS: dict[str, Layer] = {
    "sage": SAGE(16, 8), "sage-wide": SAGE(64, 8), "gcn": GCN(16, 8), "gcn-wide": GCN(64, 8),
    "gin": GIN(16, 8, hidden=12), "gat": GAT(16, 4, 2), "gat-last": GAT(16, 4, 2, concat=False), "mlp": MLP(16, 8),
    "residual": Residual(GCN(16, 8)), "graphconv": GraphConv(16, 8),
}  # fmt: skip


def added_product(added: Any, left: Any, right: Any, *rest: Any, **more: Any) -> int:
    """Operations of a product that is added in place, which PyTorch does not count."""
    return 2 * left[0] * left[1] * right[1]


class TestLayers:
    @pytest.mark.parametrize("name", LAYERS)
    def test_products_are_those_that_the_layer_computes(self, name):
        """Operations of matrix products, as PyTorch counts them in a forward pass."""
        layer, block = LAYERS[name], block_of(50, 200, 6)
        rows = torch.randn(200, layer.in_width)
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_product}) as counter:
            layer(block, rows)
        work = layer.known_work()
        assert work is not None
        size = {"destination": 50, "source": 200}
        expected = sum(2 * each.in_width * each.out_width * size[each.of] for each in work.products)
        if isinstance(layer, GAT):  # scores of destinations are computed of destinations only, and W^T a of nothing
            expected -= 2 * layer.in_width * layer.heads * 150
        assert counter.get_total_flops() == expected

    def test_a_layer_of_which_nothing_is_known_is_refused(self):
        class Twice(SAGE):
            """Computes something else than the class that says what it computes."""

        assert GINE(4, 4).work() is None
        for layer in (Twice(4, 4), Residual(Twice(4, 4))):
            with pytest.raises(ConfigError, match="it is not known what the layer"):
                layer_rates(layer, 1, made().processor, 4)
        with pytest.raises(ConfigError, match="it is not known what the layer 'gine' computes"):
            layer_rates(GINE(4, 4), 1, made().processor, 4)

    def test_sage_by_hand(self):
        """16 columns to 8 of 4 bytes, with a memory that is the bottleneck of nothing but sums."""
        processor = made({"processor.products": 1e3, "processor.memory_bandwidth": 1e9}).processor
        seconds, kept = layer_rates(SAGE(16, 8), 2, processor, 4)
        byte = 1e-9
        products = 2 * 3 * 2 * 16 * 8 / 1e3  # of the sum and of the own row; forward, and two gradients
        assert seconds.fixed == pytest.approx(5e-4)
        assert seconds.destination == pytest.approx(products + (5 * 4 * 8 + 4 * 16) * byte)
        assert seconds.source == pytest.approx(4 * 16 * byte)
        assert seconds.edge == pytest.approx(2 * (8 + 4 * 16) * byte)
        assert (kept.fixed, kept.destination, kept.source, kept.edge) == (0.0, 4 * (16 + 2 * 8), 0.0, 0.0)
        first, kept = layer_rates(SAGE(16, 8), 1, processor, 4)  # rows that need no gradient
        assert first.destination == pytest.approx(products * 2 / 3 + (5 * 4 * 8 + 4 * 16) * byte)
        assert (first.source, first.edge) == pytest.approx((0.0, (8 + 4 * 16) * byte))
        assert kept.source == 4 * 16

    def test_gat_by_hand(self):
        processor = made({"processor.products": 1e3, "processor.memory_bandwidth": 1e9}).processor
        seconds, kept = layer_rates(GAT(16, 4, 2), 1, processor, 4)
        byte = 1e-9
        assert seconds.destination == pytest.approx((5 * 4 * 8 + 4 * 8) * byte)
        assert seconds.source == pytest.approx(2 * 2 * 16 * 12 / 1e3 + 4 * 8 * byte)
        assert seconds.edge == pytest.approx((8 + 32 + 8 + 3 * 32 + 4 * 4 * 12) * byte)
        assert (kept.source, kept.edge) == (4 * (16 + 12), 4 * 12)

    def test_narrow_products_take_their_rows(self):
        fast = made({"processor.products": FAST, "processor.memory_bandwidth": 1e9}).processor
        assert layer_rates(MLP(16, 8), 2, fast, 4)[0].destination == pytest.approx((3 * 4 * 24 + 5 * 4 * 8) * 1e-9)

    @settings(deadline=None)
    @given(
        st.sampled_from(sorted(LAYERS)), st.integers(1, 3), st.sampled_from([2, 4]),
        st.floats(1e9, 1e15), st.floats(1e9, 1e13), st.floats(1.0, 100.0),
    )  # fmt: skip
    def test_a_faster_processor_never_takes_longer(self, name, number, item, products, memory, factor):
        slow = {"processor.products": products, "processor.memory_bandwidth": memory}
        before, _ = layer_rates(LAYERS[name], number, made(slow).processor, item)
        for key in slow:
            after, _ = layer_rates(LAYERS[name], number, made({**slow, key: factor * slow[key]}).processor, item)
            for unit in ("fixed", "destination", "source", "edge"):
                assert getattr(after, unit) <= getattr(before, unit)


class TestLinks:
    def test_what_workers_share(self):
        found = described_links(made(), Mesh.of(0, 8, 4))
        assert found.seconds_to_send("same_host", 5e9) == pytest.approx(1 + 20e-6)
        assert found.seconds_to_send("other_host", 12.5e9 / 4) == pytest.approx(1 + 50e-6)
        assert found.seconds_to_send("other_host", 0) == 0.0
        # As if all four workers of a host summed at once, at the rate of the slowest link; a tree has 3 levels.
        assert found.seconds_of_sum("other_host", 100) == pytest.approx(6 * 50e-6, rel=1e-3)
        assert found.seconds_of_sum("other_host", 5e9 / 4) == pytest.approx(1, rel=1e-2)
        assert Links.from_json(found.to_json()) == found

    def test_a_single_host_needs_no_network(self):
        lone = made({"network": None})
        assert set(described_links(lone, Mesh.of(0, 4, 4)).send) == {"same_host"}
        with pytest.raises(ConfigError) as error:
            described_links(lone, Mesh.of(0, 4, 2), "m.yaml")
        assert str(error.value).startswith("m.yaml, network: is missing, and 2 hosts need one")

    @given(st.floats(1, 1e12), st.floats(1e6, 1e12), st.floats(0, 1e-2), st.floats(1, 100))
    def test_a_faster_network_never_takes_longer(self, num_bytes, bandwidth, latency, factor):
        mesh = Mesh.of(0, 8, 4)
        slow = {"network.bandwidth": bandwidth, "network.latency": latency}
        fast = {"network.bandwidth": factor * bandwidth, "network.latency": latency / factor}
        before, after = (
            described_links(made(each), mesh).seconds_to_send("other_host", num_bytes) for each in (slow, fast)
        )
        assert after <= before * (1 + 1e-9)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    whole = small_random_store(folder / "whole", 400, 4000, undirected=True, num_features=12)
    for parts in ("4", "2x2", "64"):
        partita.partition(whole, folder / parts, parts=parts, algorithm="random")
    return folder


def plan_for(store: Path, changes: dict[str, Any] | None = None, *, hosts: int = 1, **settings: Any) -> Plan:
    config = Config.make({**SETTINGS, **settings}, where="test")
    return partita.make_plan(store, config, hosts=hosts, machine=made(changes))


def totals(plan: Plan) -> dict[str, float]:
    return {each.name: each.epoch.total for each in plan.candidates}


class TestPlans:
    @pytest.mark.parametrize(
        ("name", "hosts", "settings"),
        [
            ("4", 1, {"workers": 4}),
            ("4", 1, {"workers": 4, "cache": "8KiB", "cache_policy": "strategy"}),
            ("4", 1, {"workers": 4, "cache": "8KiB", "cache_layout": "partitioned"}),
            ("2x2", 2, {"workers": 2}),
        ],
        ids=["one host", "cache", "partitioned cache", "two hosts"],
    )
    def test_counts_and_bytes_are_those_of_any_plan(self, stores, name, hosts, settings):
        found = plan_for(stores / name, hosts=hosts, **settings)
        other = planned(partita.open(stores / name), MadeUp(), hosts, **settings).plan({})
        assert found.sampled_steps == found.steps == other.steps
        same = {each.name: each for each in other.candidates}
        assert {"gdp", "snp", "dnp"} <= {each.name for each in found.candidates} <= same.keys()
        for each in found.candidates:
            # A processor with memory of its own gets every row once; a CPU may sum rows straight from the host's.
            assert {**each.counts, "row_reads": 0} == {**same[each.name].counts, "row_reads": 0}
            assert each.counts["row_reads"] == each.counts["input_rows_read"]
            assert each.epoch_bytes == same[each.name].epoch_bytes
            assert each.epoch_links == same[each.name].epoch_links
            assert each.epoch_rows == same[each.name].epoch_rows

    def test_rows_are_paid_for_where_they_are(self, stores):
        """Reading takes the bytes of each tier at its rate; rows in caches come at that of the memory."""
        slow = {"host_link.bandwidth": 1e3, "processor.memory_bandwidth": 1e6}
        without = plan_for(stores / "4", slow, workers=4)
        everything = plan_for(stores / "4", slow, workers=4, cache="1GiB")
        rates = Rates.from_json(dict(everything.rates or {}))
        prices = dict(zip(TIERS, rates.tier_byte, strict=True))
        assert prices == pytest.approx({"cache": 2e-6, "host": 2e-3, "peers": 0, "hosts": 0})
        for plan, price in ((without, prices["host"]), (everything, prices["cache"])):
            for each in plan.candidates:
                rows = each.epoch_rows["memory"] * price
                assert rows / 4 * (1 - 1e-6) <= each.epoch.load <= rows  # of the slowest of four workers

    def test_caches_of_processors_keep_rows_of_their_own_host_too(self, stores):
        """Where rows are dealt out to hosts, and everything fits into caches, nothing is left in a host's memory."""
        config = Config.make({**SETTINGS, "workers": 2, "cache": "1GiB"})
        plan = partita.make_plan(stores / "2x2", config, hosts=2, machine=made(), shards=True)
        other = planned(partita.open(stores / "2x2"), MadeUp(), 2, shards=True, workers=2, cache="1GiB").plan({})
        rows = {each.name: each.counts["rows_from"] for each in plan.candidates}
        assert all(of["host"] == 0 for of in rows.values())
        assert any(each.counts["rows_from"]["host"] for each in other.candidates)
        assert rows["gdp"]["cache"] == sum(rows["gdp"].values())

    def test_where_links_cost_nothing_work_decides(self, stores):
        free = {"processor_link.latency": 0, "processor_link.bandwidth": FAST, "host_link.bandwidth": FAST}
        plan = plan_for(stores / "4", {**free, "processor.layer_time": 0}, workers=4)
        work = {each.name: each.epoch.sample + each.epoch.compute for each in plan.candidates}
        assert sorted(totals(plan), key=totals(plan).get) == sorted(work, key=work.get)
        assert all(each.epoch.exchange + each.epoch.gradients < 1e-9 for each in plan.candidates)

    def test_rows_stay_within_hosts_where_the_network_is_slow(self, stores):
        plan = plan_for(stores / "2x2", {"network.bandwidth": 1e3}, hosts=2, workers=2)
        first = sorted(totals(plan), key=totals(plan).get)[:5]
        assert all(name == "gdp" or name.endswith(("@workers", "@workers+data@hosts")) for name in first)

    def test_the_plan_says_what_it_is_for(self, stores):
        plan = plan_for(stores / "4", workers=4)
        assert plan.machine == made().to_json()
        assert plan.notes[0].startswith("nothing was measured: rates follow from what machine says of made up")
        assert all(each.tried_steps == 0 for each in plan.candidates)
        assert Plan.from_json(plan.to_json()) == plan
        assert "trials" not in why(plan)

    def test_64_workers(self, stores):
        plan = plan_for(stores / "64", hosts=8, workers=8)
        assert plan.made_for["workers"] == 64
        assert {"gdp", "nfp", "snp", "dnp", "gsplit"} <= totals(plan).keys()
        assert "gsplit@workers+data@hosts" in totals(plan)

    def test_what_does_not_fit_is_refused(self, stores):
        with pytest.raises(ResourceError, match="a worker needs about"):
            plan_for(stores / "4", {"processor.memory": "1 kB"}, workers=4)
        with pytest.raises(ResourceError) as error:
            plan_for(stores / "4", {"host_memory": "1 kB"}, workers=4)
        assert str(error.value).startswith("machine, host_memory: edges and feature rows take")
        most = max(each.memory_bytes for each in plan_for(stores / "4", workers=4).candidates)
        some = plan_for(stores / "4", {"processor.memory": most - 1}, workers=4)
        assert any("a worker needs about" in reason for reason in some.refused.values())

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"workers": 9}, "machine, processors: 9 workers on a host, and it has 8"),
            ({"feature_memory": "1GiB"}, "descriptions of machines have no disk"),
            ({"model": "gatv2"}, "it is not known what the layer 'gatv2' computes"),
            ({"hosts": 2, "links": None}, "are both given"),
        ],
    )
    def test_what_cannot_be_planned(self, stores, settings, message):
        if "links" in settings:
            links = described_links(made(), Mesh.of(0, 4, 4))
            with pytest.raises(ConfigError, match=message):
                partita.make_plan(stores / "4", Config.make(SETTINGS), machine=made(), links=links)
            return
        with pytest.raises(ConfigError) as error:
            plan_for(stores / "4", **{"workers": 4, **settings})
        assert message in str(error.value)

    def test_the_device_of_the_run_is_not_looked_at(self, stores):
        assert totals(plan_for(stores / "4", workers=4, device="cuda")) == totals(plan_for(stores / "4", workers=4))

    def test_a_file_is_named_in_the_plan(self, stores, tmp_path):
        (tmp_path / "m.yaml").write_text(yaml.safe_dump(VALUES))
        plan = partita.make_plan(stores / "4", Config.make({**SETTINGS, "workers": 4}), machine=tmp_path / "m.yaml")
        assert f"what {tmp_path / 'm.yaml'} says of made up" in plan.notes[0]
