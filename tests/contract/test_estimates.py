"""What one process foresees of a step is what every worker then counts in it: rows, edges and bytes, exactly.

Over every placement of the table at every layer, every way of reading input rows, topology and sampler.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from steps import KEY, Step

from partita.comm.fake import FakeContext
from partita.core.errors import ConfigError
from partita.core.estimates import SampledLayer
from partita.core.mesh import Mesh
from partita.kernels import Relabeller
from partita.parallel.forecast import estimate_step, messages
from partita.parallel.placements.kinds import INPUT_PLACEMENTS, PLACEMENTS
from partita.parallel.seed_split import share_of
from partita.parallel.strategies import build_engine, parse_strategy
from partita.sample.blocks import sample_block
from partita.testing.graphs import small_random_store
from partita.testing.threads import ThreadGroups

N = 240


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_random_store(tmp_path_factory.mktemp("graph") / "store", N, 1800)


def all_lists(layers: int) -> list[str]:
    """Every list of placements with every way of reading input rows that goes with it."""
    lists = []
    for inputs, *placements in product(INPUT_PLACEMENTS, *[PLACEMENTS] * layers):
        try:
            parse_strategy(",".join([inputs, *placements]), layers)
        except ConfigError:
            continue
        if not any(PLACEMENTS.find(name).first_layer_only for name in placements[1:]):
            lists.append(",".join([inputs, *placements]))
    return lists


def parts(workers: int) -> tuple[int, ...]:
    """Uneven ones; from three on the second owns nothing."""
    bounds = np.linspace(0, 1, workers + 1) ** 1.5 * N
    if workers > 2:
        bounds[2] = bounds[1]
    return tuple(int(bound) for bound in bounds)


def engine_of(context, step: Step, strategy: str):
    return build_engine(
        parse_strategy(strategy, len(step.fanouts)), step.model(), step.topology_of(context), step.rows(context.mesh),
        step.sampler(context.group("all", "sample")), step.dtype, context, step.part_offsets(),
    )  # fmt: skip


def counted(step: Step, strategy: str, workers: int, hosts: int) -> list:
    """What every worker counts when it samples the step with the others."""

    def work(context):
        engine = engine_of(context, step, strategy)
        batch = engine.sample(share_of(step.batch_seeds(), context.mesh, "owner", step.part_offsets()), KEY)
        return batch.counts, messages(engine, batch)

    return ThreadGroups(workers, hosts).run(work)


def foreseen(step: Step, strategy: str, workers: int, hosts: int) -> list:
    """The same, from one process."""
    drawn, requests, scratch = [], step.batch_seeds(), Relabeller(N)
    alone = FakeContext(Mesh.of(0, 1, 1))
    for layer in range(len(step.fanouts), 0, -1):
        sampler = step.sampler(alone.group())
        block = sample_block(step.topology(), requests, KEY, layer, sampler, relabel=scratch)
        drawn.insert(0, SampledLayer(block))
        requests = drawn[0].src
    meshes = [Mesh.of(rank, workers, workers // hosts) for rank in range(workers)]
    seeds = np.zeros(len(step.seeds), np.uint64)
    place = {seed: at for at, seed in enumerate(step.batch_seeds().tolist())}
    for rank, mesh in enumerate(meshes):
        for seed in share_of(step.batch_seeds(), mesh, "owner", step.part_offsets()).tolist():
            seeds[place[seed]] |= np.uint64(1 << rank)
    engine = engine_of(FakeContext(meshes[0]), step, strategy)
    return [(share.counts, share.messages) for share in estimate_step(engine, drawn, seeds, meshes[0]).shares]


def check(step: Step, strategy: str, workers: int, hosts: int = 1) -> None:
    found, wanted = (way(step, strategy, workers, hosts) for way in (foreseen, counted))
    for worker, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one == other, (strategy, worker)
    assert sum(counts.sampled_edges for counts, _ in found) > 0


@pytest.mark.parametrize("strategy", all_lists(2))
def test_of_every_list_of_placements(store, strategy):
    for kind, workers in (("sage", 3), ("gcn", 2), ("gat", 3), ("sage", 1)):
        check(Step(store, kind, fanouts=(4, 3), parts=parts(workers)), strategy, workers)


@pytest.mark.parametrize("strategy", all_lists(2))
@pytest.mark.parametrize("axis", ["workers", "hosts"])
def test_along_an_axis_of_a_mesh(store, strategy, axis):
    other = "hosts" if axis == "workers" else "workers"
    for kind, workers in (("sage", 4), ("gat", 6)):
        step = Step(store, kind, fanouts=(4, 3), parts=parts(workers))
        check(step, f"{strategy}@{axis}+data@{other}", workers, hosts=2)


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit", "source,destination,data"])
@pytest.mark.parametrize("kind", ["sage-max", "gin"])
def test_of_other_layers(store, strategy, kind):
    check(Step(store, kind, parts=parts(3)), strategy, 3)


@pytest.mark.parametrize("strategy", ["gdp", "dnp", "gsplit"])
def test_of_a_convolution_of_others(store, strategy):
    """Those that split a layer's sum are refused; see the tests of placements."""
    check(Step(store, "pyg-sage", parts=parts(3)), strategy, 3)


@pytest.mark.parametrize("strategy", ["gdp", "nfp", "snp", "dnp", "gsplit", "by-owner,source,destination,data"])
@pytest.mark.parametrize("options", [{"split_topology": True}, {"budgets": (60, 40, 20)}, {"weighted": True}])
def test_of_partitioned_topologies_and_other_samplers(tmp_path, strategy, options):
    store = small_random_store(tmp_path / "store", N, 1800, weighted=True)
    for more in ({}, {"split_topology": True}):
        for workers, hosts in ((3, 1), (4, 2)):
            check(Step(store, parts=parts(workers), **{**options, **more}), strategy, workers, hosts)


def test_of_rows_that_are_not_summed_by_id(store):
    for strategy in ("gdp", "snp", "dnp"):
        check(Step(store, input_dropout=0.3, parts=parts(3)), strategy, 3)


def test_of_64_workers(store):
    step = Step(store, parts=tuple(range(0, N, 4)) + (N,) * 5, seeds=tuple(range(N)))
    for strategy in ("gdp", "gsplit", "source,source,source", "nfp"):
        found = foreseen(step, strategy, 64, 4)
        assert len(found) == 64
        assert sum(counts.computed_destinations[-1] for counts, _ in found) == N
