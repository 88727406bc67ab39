"""The oracle: every strategy on any number of workers takes the very step that one process takes.

Loss and every parameter gradient are compared with ``[Data] * K`` in one process on the same global batch: in float64
to 1e-9, in float32 to 1e-5, relative to the largest element of each tensor.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import expected
from steps import ShareOutcome, Step, difference, distributed, reference, run_worker
from torch import Tensor, nn

from partita.comm.axis import Workers
from partita.comm.context import Context
from partita.comm.routing import Route
from partita.core.errors import ConfigError
from partita.core.records import Block, Traffic
from partita.features.policies import POLICIES
from partita.features.tiers import NO_CACHE, CacheSettings
from partita.graph.store import GraphStore
from partita.nn import ops
from partita.nn.layers import SAGE, Layer, PygLayer
from partita.nn.layers.reductions import Mean
from partita.parallel.placements.source import Source
from partita.parallel.placements.source_rows import RowsWork
from partita.parallel.placements.source_states import StatesWork
from partita.parallel.seed_split import share_of
from partita.parallel.strategies import parse_strategy
from partita.testing.graphs import formula_store
from partita.testing.workers import run_workers
from partita.train.team import PURPOSES

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}

KINDS = ("sage", "sage-max", "gcn", "gat", "gin", "pyg-graph", "pyg-sage")
NAMED = ("gdp", "nfp", "snp", "dnp", "gsplit")
MIXED = ("source,destination,data", "feature,source,destination", "by-owner,destination,data,source")
HIERARCHICAL = ("data@hosts+gsplit@workers", "snp@hosts+data@workers", "nfp@workers+gdp@hosts")

# Parts of uneven sizes; with three and four workers the second owns nothing.
PARTS = {1: (0, 60), 2: (0, 25, 60), 3: (0, 20, 20, 60), 4: (0, 10, 10, 37, 60)}

MESHES = [(strategy, workers, 1) for strategy in (*NAMED, *MIXED) for workers in PARTS]
MESHES += [(strategy, workers, 2) for strategy in HIERARCHICAL for workers in (2, 4)]
WAYS = list(product((0.0, 0.4), (torch.float64, torch.float32), ("owner", "even"), ("replicated", "partitioned")))


def can_run(kind: str, strategy: str) -> bool:
    """A PyG convolution cannot be computed from parts of its edges or columns."""
    placements = set(parse_strategy(strategy, 3).placements)
    return not (kind.startswith("pyg") and placements & {"source", "feature"})


CASES = [(kind, *mesh) for kind in KINDS for mesh in MESHES if can_run(kind, mesh[0])]
CASES += [(kind, "destination,data,destination", workers, 1) for kind in KINDS for workers in PARTS]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Re-ordered, with multi-edges, loops and nodes without neighbors."""
    return formula_store(tmp_path_factory.mktemp("oracle") / "g", num_nodes=60, num_features=7, shuffle_seed=3)


@lru_cache(maxsize=64)
def in_one_process(step: Step) -> Any:
    return reference(step)


def check(step: Step, strategy: str, workers: int, hosts: int = 1, **options: Any) -> Any:
    found = distributed(step, strategy, workers, hosts=hosts, **options)
    wanted = in_one_process(replace(step, cache=NO_CACHE, split_features=False, split_topology=False))
    assert sorted(found.output) == sorted(wanted.output)
    worst = difference(found, wanted)
    assert worst < TOLERANCE[step.dtype], worst
    sent = {kind: found.sent[kind] for kind in found.traffic.to_json()}
    assert sent == found.traffic.to_json()
    return found


def check_way(store: GraphStore, case: tuple[str, str, int, int], way: tuple[float, torch.dtype, str, str]) -> None:
    (kind, strategy, workers, hosts), (dropout, dtype, seed_split, topology) = case, way
    step = Step(
        store, kind, dtype=dtype, dropout=dropout, input_dropout=dropout / 2, parts=PARTS[workers],
        split_topology=topology == "partitioned",
    )  # fmt: skip
    check(step, strategy, workers, hosts, seed_split=seed_split)


def name_of(value: Any) -> str:
    return "-".join(str(part).removeprefix("torch.") for part in value)


@pytest.mark.parametrize(
    ("case", "way"),
    [pytest.param(case, WAYS[(7 * i) % len(WAYS)], id=name_of(case)) for i, case in enumerate(CASES) if i % 5 < 2],
)
def test_every_strategy_takes_the_same_step(store, case, way) -> None:
    """Two cases in five, each in one of the ways."""
    check_way(store, case, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param(way, id=name_of(way)) for way in WAYS])
@pytest.mark.parametrize("case", [pytest.param(case, id=name_of(case)) for case in CASES])
def test_every_strategy_takes_the_same_step_in_every_way(store, case, way) -> None:
    check_way(store, case, way)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_of_the_reference_vanishes(store, kind) -> None:
    """Else the comparison above would be one of rounding errors."""
    for dropout in (0.0, 0.4):
        step = Step(store, kind, dropout=dropout, input_dropout=dropout / 2)
        assert min(float(gradient.abs().max()) for gradient in in_one_process(step).gradients.values()) > 1e-3


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "gsplit", *MIXED])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gin", "gat"])
def test_residual_connections(store, strategy, kind) -> None:
    """As wide as the input in layers 1 and 2, narrower in the last one."""
    if kind == "gat" and "feature" in parse_strategy(strategy, 3).placements:
        pytest.skip("attention is no sum of slices with a row per destination")
    step = Step(store, f"residual-{kind}", parts=PARTS[4], features=9, hidden=9, dropout=0.4, input_dropout=0.2)
    check(step, strategy, 4)


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED])
def test_layers_that_read_no_neighbors(store, strategy) -> None:
    for fanouts in ((0, 0, 0), (3, 2, 2)):
        for dropout in (0.0, 0.4):
            step = Step(store, "mlp", parts=PARTS[4], fanouts=fanouts, dropout=dropout, input_dropout=dropout / 2)
            check(step, strategy, 4)


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED])
@pytest.mark.parametrize("kind", ["sage", "gat"])
@pytest.mark.parametrize("seeds", [(7,), (3, 58), (0, 6, 12)], ids=["one", "two", "lonely"])
def test_fewer_seeds_than_workers(store, strategy, kind, seeds) -> None:
    """The last batch of an epoch may be short; some workers, or the only ones that own anything, start from nothing."""
    step = Step(store, kind, parts=PARTS[4], seeds=seeds)
    found = distributed(step, strategy, 4, seed_split="even")
    wanted = in_one_process(step)
    for name, gradient in wanted.gradients.items():
        scale = max(1e-3, float(gradient.abs().max()))  # of one seed, some gradients vanish
        assert float((found.gradients[name] - gradient).abs().max()) < 1e-9 * scale, name


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED])
@pytest.mark.parametrize(
    "options",
    [{"hidden": 5}, {"hidden": 24, "features": 3}, {"fanouts": (-1, -1, -1)}, {"replace": True}],
    ids=["narrowing", "fewer-columns-than-workers", "all-neighbors", "replace"],
)
def test_other_shapes(store, strategy, options) -> None:
    for kind in ("sage", "gcn", "gin", "sage-sum"):
        check(Step(store, kind, parts=PARTS[4], **options), strategy, 4)


@pytest.mark.parametrize("strategy", ["snp", "source,destination,data", "by-owner,source,source,source"])
@pytest.mark.parametrize("way", [StatesWork, RowsWork])
def test_both_ways_of_attention_by_source(store, monkeypatch, strategy, way) -> None:
    monkeypatch.setattr(Source, "_is_less", lambda *_: way is RowsWork)
    for dropout in (0.0, 0.3):
        found = check(Step(store, "gat", parts=PARTS[3], dropout=dropout, input_dropout=dropout), strategy, 3)
        assert {type(work) for batch in found.batches for work in batch.works} & {StatesWork, RowsWork} == {way}


def test_attention_by_source_takes_the_cheaper_way(store) -> None:
    """One node with many neighbors has few states, many nodes share their sources."""
    step = Step(store, "gat", parts=PARTS[3], classes=8, fanouts=(3, 2, -1))
    busiest = int(step.original()[step.topology().degrees(torch.arange(60)).argmax()])
    one = distributed(replace(step, seeds=(busiest,)), "data,data,source", 3, seed_split="even")
    many = distributed(replace(step, seeds=tuple(range(60))), "data,data,source", 3, seed_split="even")
    assert [type(batch.works[2]) for batch in one.batches] == [StatesWork] * 3
    assert [type(batch.works[2]) for batch in many.batches] == [RowsWork] * 3
    assert one.messages[3].total > 0
    assert many.messages[3].total > 0


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "dnp", "gsplit"])
def test_attention_dropout_where_whole_rows_are_computed(store, strategy) -> None:
    check(Step(store, "gat-dropout", dropout=0.2, parts=PARTS[3]), strategy, 3)


@pytest.mark.parametrize(("workers", "hosts", "parts"), [(4, 2, (0, 25, 60)), (4, 2, (0, 10, 10, 37, 60))])
@pytest.mark.parametrize("seed_split", ["owner", "even"])
def test_a_host_may_have_parts_of_its_own_or_share_those_of_all(store, workers, hosts, parts, seed_split) -> None:
    check(Step(store, parts=parts), "data@hosts+gsplit@workers", workers, hosts, seed_split=seed_split)


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED])
def test_half_precision_travels_widened(store, strategy) -> None:
    for kind in ("sage", "gat", "pyg-sage"):
        if can_run(kind, strategy):
            step = Step(store, kind, dtype=torch.float32, parts=PARTS[3], autocast=True)
            found = distributed(step, strategy, 3)
            assert {k: found.sent[k] for k in found.traffic.to_json()} == found.traffic.to_json()
            assert abs(found.loss - in_one_process(step).loss) < 0.05


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "gin"])
def test_one_worker_by_destination_is_data_to_the_bit(store, kind) -> None:
    step = Step(store, kind, dtype=torch.float32, dropout=0.3, parts=PARTS[1])
    found, wanted = distributed(step, "destination,destination,destination", 1), in_one_process(step)
    assert torch.equal(found.loss, wanted.loss)
    for name, gradient in wanted.gradients.items():
        assert torch.equal(found.gradients[name], gradient), name


@pytest.mark.parametrize("strategy", ["gsplit", "source,source,source", "nfp"])
def test_a_step_is_reproducible_to_the_bit(store, strategy) -> None:
    step = Step(store, "gat", dtype=torch.float32, dropout=0.3, parts=PARTS[3])
    one, other = distributed(step, strategy, 3), distributed(step, strategy, 3)
    for name, gradient in one.gradients.items():
        assert torch.equal(other.gradients[name], gradient), name


# Input rows through tiers: the same rows wherever they come from.

ROOM = 12 + 8 * 7 * 9  # the list of positions of 60 nodes, and nine rows in float64
SMALL_ROOM = 12 + 7 * 9  # nine rows of bytes
ONE_HOST = [(strategy, 3, 1) for strategy in (*NAMED, *MIXED)]
TWO_HOSTS = [
    (strategy, 4, 2)
    for strategy in (
        *("gdp", "snp", "dnp", "gsplit", "by-owner,destination,data,source"),
        *("data@hosts+gsplit@workers", "nfp@workers+data@hosts", "snp@hosts+data@workers"),
    )
]
OWNERS_READ = ("snp", "gsplit", "by-owner,destination,data,source", "snp@hosts+data@workers")  # on their own host
STATIC = [name for name in POLICIES if POLICIES.find(name).score is not None]
TIERED = list(product([*ONE_HOST, *TWO_HOSTS], ("none", "own", "partitioned")))


def check_tiers(store: GraphStore, case: tuple[tuple[str, int, int], str], number: int, policy: str) -> Any:
    """On two hosts, each holds the rows of its own nodes and a few others."""
    (strategy, workers, hosts), layout = case
    stored = (None, torch.float16, (torch.int8, torch.uint8)[number % 2])[number % 3]
    room = SMALL_ROOM if number % 3 == 2 else ROOM
    step = Step(
        store,
        ("sage", "gat", "gcn", "sage-max", "gin")[number % 5],
        dtype=torch.float32 if number % 3 == 0 else torch.float64,
        stored=stored,
        input_dropout=0.2 * (number % 2),
        parts=PARTS[workers],
        cache=NO_CACHE if layout == "none" else CacheSettings(room, policy, layout),  # type: ignore[arg-type]
        split_features=hosts > 1,
    )
    return check(step, strategy, workers, hosts, seed_split=("owner", "even")[number % 2])


def name_of_tiers(case: tuple[tuple[str, int, int], str]) -> str:
    return name_of((*case[0], case[1]))


@pytest.mark.parametrize(
    ("case", "number"), [pytest.param(case, number, id=name_of_tiers(case)) for number, case in enumerate(TIERED)]
)
def test_rows_through_tiers_are_the_same_rows(store, case, number) -> None:
    found = check_tiers(store, case, number, STATIC[number % len(STATIC)])
    (strategy, _, hosts), layout = case
    cached, _, _, other_hosts = (sum(c.rows_from[place] for c in found.counts) for place in range(4))
    assert (other_hosts > 0) == (hosts > 1 and not strategy.startswith("snp"))
    # Where the host of an owner has all that it reads, copies would save nothing.
    assert (cached > 0) == (layout != "none" and (hosts == 1 or strategy not in OWNERS_READ))
    assert all(sum(c.rows_from[:2]) == c.input_rows_read for c in found.counts)


@pytest.mark.slow
@pytest.mark.parametrize("policy", STATIC)
@pytest.mark.parametrize(
    ("case", "number"), [pytest.param(case, number, id=name_of_tiers(case)) for number, case in enumerate(TIERED)]
)
def test_rows_through_tiers_are_the_same_rows_by_every_policy(store, case, number, policy) -> None:
    check_tiers(store, case, number, policy)


def test_slices_of_columns_cannot_come_from_other_hosts(store) -> None:
    step = Step(store, parts=PARTS[4], split_features=True)
    for strategy in ("nfp", "nfp@hosts+data@workers"):
        with pytest.raises(ConfigError, match=r"other hosts.*nfp@workers\+data@hosts"):
            distributed(step, strategy, 4, hosts=2)


# What a step costs.


@pytest.mark.parametrize("strategy", [*NAMED, *MIXED, "by-owner,source,source,source", "by-owner,data,data,data"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "gin", "sage-max"])
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_counts_and_bytes_follow_from_the_sample(store, kind, strategy, topology) -> None:
    """The rows are counted by brute force; from them alone follow the bytes that were sent."""
    step = Step(
        store, kind, parts=PARTS[4], stored={"gcn": torch.float16, "gin": torch.int8, "gat": torch.uint8}.get(kind),
        split_topology=topology == "partitioned",
    )  # fmt: skip
    found = check(step, strategy, 4, seed_split="even")
    parsed = parse_strategy(strategy, 3)
    shares = [batch.seeds.tolist() for batch in found.batches]
    wanted = expected(step, parsed.placements, parsed.inputs, shares)
    assert found.messages[: 1 + 3] == [wanted.inputs(found.engine), *wanted.layers(found.engine)]
    drawing = found.messages[1 + 3 : 1 + 2 * 3]
    assert drawing == [found.engine.worker.topology.traffic(remote) for remote in wanted.remote]
    assert [list(layer) for layer in zip(*(c.computed_destinations for c in found.counts))] == wanted.computed
    assert sum(c.sampled_edges for c in found.counts) == sum(wanted.edges)
    assert [c.input_rows_read for c in found.counts] == wanted.read


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_gsplit_draws_computes_and_reads_everything_once(store, workers) -> None:
    step = Step(store, parts=PARTS[workers], seeds=tuple(range(40)))
    found, alone = distributed(step, "gsplit", workers, seed_split="even"), in_one_process(step)
    (once,) = alone.counts
    assert sum(c.sampled_edges for c in found.counts) == once.sampled_edges
    assert tuple(map(sum, zip(*(c.computed_destinations for c in found.counts)))) == once.computed_destinations
    assert sum(c.input_rows_read for c in found.counts) == once.input_rows_read
    assert sum(c.row_reads for c in found.counts) == once.input_rows_read
    for layer in range(3):
        blocks = [batch.works[layer].block for batch in found.batches]  # type: ignore[attr-defined]
        computed = torch.cat([block.dst for block in blocks]).tolist()
        assert len(computed) == len(set(computed))
        assert sorted(computed) == sorted(alone.batches[0].works[layer].block.dst.tolist())
    spread = distributed(step, "gdp", workers, seed_split="even")
    assert sum(c.sampled_edges for c in spread.counts) > once.sampled_edges
    assert spread.traffic == Traffic()


# The oracle itself: three mistakes that it must notice.


def fails(step: Step, strategy: str, **options: Any) -> None:
    assert difference(distributed(step, strategy, 3, **options), in_one_process(step)) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_notices_an_unweighted_mean_of_partial_means(store, monkeypatch, dtype) -> None:
    step = Step(store, parts=PARTS[3], dtype=dtype)
    check(step, "snp", 3)

    def mean_of_means(self: Mean, states: list[Tensor]) -> Tensor:
        stacked = torch.stack(list(states))
        present = (stacked != 0).any(-1, keepdim=True)
        return stacked.sum(0) / present.sum(0).clamp(min=1)

    monkeypatch.setattr(Mean, "divisible", lambda self, block, dtype: block)
    monkeypatch.setattr(Mean, "merge", mean_of_means)
    fails(step, "snp")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("strategy", ["dnp", "gsplit"])
def test_it_notices_a_dropped_halo_row(store, monkeypatch, dtype, strategy) -> None:
    step = Step(store, parts=PARTS[3], dtype=dtype)
    check(step, strategy, 3, seed_split="even")
    whole = Route.answer

    def with_one_row_lost(self: Route, group: Any, rows: Tensor) -> Tensor:
        answered = whole(self, group, rows)
        lost = torch.ones(len(answered), 1, dtype=answered.dtype)
        if group.rank == 0 and self.send[2]:
            lost[int(self.back.by_row.edge[-1])] = 0  # the last row of the last worker
        return answered * lost

    monkeypatch.setattr(Route, "answer", with_one_row_lost)
    fails(step, strategy, seed_split="even")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("strategy", NAMED)
def test_it_notices_a_seed_that_counts_twice(store, dtype, strategy) -> None:
    step = Step(store, parts=PARTS[3], dtype=dtype)

    def share(context: Workers, seeds: Tensor) -> Tensor:
        mine = share_of(seeds, context.mesh, "even", step.part_offsets())
        return torch.cat([mine, seeds[:1]]) if context.mesh.rank == 2 else mine

    check(step, strategy, 3, seed_split="even")
    fails(step, strategy, share=share)


# What must not stop the others.


class Shy(nn.Module):
    """A convolution that does not look at anything where it has nothing to do."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, out)

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> Tensor:
        if edge_index.shape[1] == 0:
            return torch.zeros(len(x[1]), self.lin.out_features, dtype=x[1].dtype)
        rows = self.lin(x[0])[edge_index[0]]
        return torch.zeros(len(x[1]), rows.shape[1], dtype=rows.dtype).index_add(0, edge_index[1], rows)


class Plain(Layer):
    """Nothing but ``forward``."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out)
        self.lin = nn.Linear(width, out)

    def forward(self, block: Block, h: Any, key: int | None = None) -> Tensor:
        return self.lin(ops.aggregate(block, ops.all_rows(h), "sum"))


@pytest.mark.parametrize("strategy", ["gdp", "gsplit", "destination,data,destination"])
def test_a_layer_that_is_only_forward(store, monkeypatch, strategy) -> None:
    monkeypatch.setattr("steps.make_layer", lambda kind, i, o, last: Plain(i, o))
    step = Step(store, "plain", parts=PARTS[3])
    assert difference(distributed(step, strategy, 3), reference(step)) < 1e-9


@pytest.mark.parametrize("strategy", ["gdp", "gsplit", "destination,data,destination", "dnp"])
def test_a_layer_that_skips_empty_input_hangs_nobody(store, monkeypatch, strategy) -> None:
    monkeypatch.setattr("steps.make_layer", lambda kind, i, o, last: PygLayer(Shy(i, o), i, o))
    monkeypatch.setattr("partita.comm.threads.TIMEOUT", 10.0)
    step = Step(store, "shy", parts=PARTS[4], seeds=(7, 8))
    found, wanted = distributed(step, strategy, 4, seed_split="even"), reference(step)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(found.gradients[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("strategy", [*NAMED, "source,destination,data"])
@pytest.mark.parametrize("kind", ["sage", "gcn"])
@pytest.mark.parametrize("fanout", [3, -1])
def test_wide_rows_are_projected_before_or_after_they_are_summed(store, strategy, kind, fanout) -> None:
    """At one place sums come first, unless all neighbors are taken; in parts they come last."""
    step = Step(store, kind, features=40, fanouts=(fanout, 2, 2), parts=PARTS[3])
    assert difference(distributed(step, strategy, 3), reference(step)) < 1e-9


def test_the_error_of_a_worker_is_the_error_of_all(store) -> None:
    class Broken(SAGE):
        def forward(self, *arguments: Any) -> Tensor:
            raise ConfigError("no")

    step = Step(store, parts=PARTS[3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("steps.make_layer", lambda kind, i, o, last: Broken(i, o))
        with pytest.raises(ConfigError, match="no"):
            distributed(step, "gsplit", 3)


# Processes instead of threads.


def in_a_process(context: Context, path: str, strategies: list[str], kinds: list[str]) -> dict[str, float]:
    """The worst difference of every strategy and layer, with gradients summed by the group."""
    found = {}
    torch.set_num_threads(1)
    for strategy, kind in product(strategies, kinds):
        step = Step(GraphStore.open(path), kind, parts=PARTS[context.mesh.size])
        done: ShareOutcome = run_worker(context, step, strategy, "owner")
        context.group("all", "train").sum_([done.loss, *done.gradients.values()])
        found[f"{strategy} {kind}"] = difference(done, reference(step))
    return found


@pytest.mark.parametrize(("workers", "hosts"), [(3, 1), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_processes_take_the_same_step(tmp_path: Path, workers: int, hosts: int) -> None:
    formula_store(tmp_path / "g", num_nodes=60, shuffle_seed=3)
    strategies = [*NAMED, *MIXED] if hosts == 1 else ["data@hosts+gsplit@workers", "gsplit"]
    results = run_workers(
        in_a_process, workers, str(tmp_path / "g"), strategies, ["sage", "gat"],
        hosts=hosts, purposes=PURPOSES, timeout=120,
    )  # fmt: skip
    for result in results:
        assert len(result) == 2 * len(strategies)
        assert max(result.values()) < 1e-9, result
