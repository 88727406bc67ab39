"""What one process estimates of a step, beside what every worker counts in it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from asking import ANSWERS
from meters import bytes_far
from steps import KEY, Step, keys_of_dry_run, run_worker

from partita.comm.fake import FakeContext
from partita.comm.threads import ThreadGroups
from partita.core.estimates import SampledLayer
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs
from partita.core.records import ID_BYTES, TIERS, Traffic
from partita.kernels import Relabeller
from partita.parallel.caching import assume_caches, assume_workers, fill_caches
from partita.parallel.forecast import WorkerEstimate, estimate_step, messages
from partita.parallel.seed_split import share_of
from partita.parallel.strategies import Strategy, build_engine, parse_strategy
from partita.parallel.typed_inputs import TypedInputs, TypedReads
from partita.sample.blocks import sample_block
from partita.sample.seeds import SeedOrder

N = 240
"""Nodes of the graph."""


def parts(workers: int) -> tuple[int, ...]:
    """Uneven ones; from three on the second owns nothing."""
    bounds = np.linspace(0, 1, workers + 1) ** 1.5 * N
    if workers > 2:
        bounds[2] = bounds[1]
    return tuple(int(bound) for bound in bounds)


def strategy_of(step: Step, strategy: str) -> Strategy:
    return parse_strategy(strategy, len(step.fanouts))


def engine_of(context, step: Step, strategy: str):
    return build_engine(
        strategy_of(step, strategy), step.model(), step.topology_of(context), step.rows(context.mesh),
        step.sampler(context.group("all", "sample")), step.dtype, context, step.part_offsets(), step.cache,
    )  # fmt: skip


def counted(step: Step, strategy: str, workers: int, hosts: int) -> list:
    """What every worker counts when it samples the step with the others."""

    def work(context):
        engine, parsed, offsets = engine_of(context, step, strategy), strategy_of(step, strategy), step.part_offsets()
        order = SeedOrder(step.batch_seeds(), KEY.seed, len(step.seeds))
        share = partial(share_of, mesh=context.mesh, seed_split="owner", part_offsets=offsets)
        fill_caches(
            engine,
            parsed,
            context,
            step.cache,
            step.store,
            offsets,
            order,
            share,
            keys_of_dry_run,
        )
        seeds = share_of(step.batch_seeds(), context.mesh, "owner", step.part_offsets())
        batch = engine.sample(step.requests(seeds), step.key())
        return batch.counts, messages(engine, batch), by_type(batch.inputs), learnt_rows(batch.inputs, engine)

    found = ThreadGroups(workers, hosts).run(work)
    wanted = [rows for *_, rows in found]
    return [(*same, given_of(wanted, rank, step, workers)) for rank, (*same, _) in enumerate(found)]


def learnt_rows(work, engine) -> list[tuple[int, int]] | None:
    """The type and store id of every learnt row that a worker wants; ``None``: none are learnt."""
    if not isinstance(work, TypedReads) or not any(engine.inputs.columns.learnt):
        return None
    columns = engine.inputs.columns
    return [
        (kind, node)
        for kind, rows in enumerate(work.numbers)
        for node in columns.types.ids(kind, rows.numpy()).tolist()
        if columns.learnt[kind]
    ]


def given_of(wanted: list, rank: int, step: Step, workers: int) -> tuple[list[int], list[int]] | None:
    """Learnt rows that a worker gives to all who want them, by type, and the same, each once."""
    if wanted[0] is None:
        return None
    first, last = step.part_offsets().tolist()[rank : rank + 2]
    own = [(kind, node) for rows in wanted for kind, node in rows if first <= node < last]
    types = range(step.store.node_types.count)
    return tuple([sum(kind == each for kind, _ in rows) for each in types] for rows in (own, set(own)))


def by_type(work) -> tuple[list[int], list[int]] | None:
    """Of a typed graph the input rows of each type that a worker reads, and those that its layer 1 takes."""
    if not isinstance(work, TypedReads):
        return None
    return [0 if each is None else each.num_read for each in work.works], [len(at) for at in work.at]


def sampled(step: Step) -> list[SampledLayer]:
    """What all workers together draw, layer 1 first."""
    drawn, requests, topology, key = [], step.requests(step.batch_seeds()), step.whole_topology(), step.key()
    scratch = Relabeller(topology.num_nodes, "hash")
    sampler = step.sampler(FakeContext(Mesh.of(0, 1, 1)).group())
    for layer in range(len(step.fanouts), 0, -1):
        block = sample_block(topology, requests, key, layer, sampler, relabel=scratch)
        drawn.insert(0, SampledLayer(block, topology.slots))
        requests = drawn[0].src
    return drawn


def estimated(
    step: Step, strategy: str, workers: int, hosts: int, known: bool = True
) -> tuple[list[WorkerEstimate], Inputs]:
    """What one process estimates of every worker, if it knows what the others have; and the input placement."""
    drawn = sampled(step)
    meshes = [Mesh.of(rank, workers, workers // hosts) for rank in range(workers)]
    seeds = np.zeros(len(step.seeds), np.uint64)
    place = {seed: at for at, seed in enumerate(step.batch_seeds().tolist())}
    for rank, mesh in enumerate(meshes):
        for seed in share_of(step.batch_seeds(), mesh, "owner", step.part_offsets()).tolist():
            seeds[place[seed]] |= np.uint64(1 << rank)
    contexts = [FakeContext(mesh) for mesh in meshes]
    engines = [engine_of(context, step, strategy) for context in contexts]
    reads = torch.zeros(workers, 0, dtype=torch.int32)  # none of a policy that asks for them
    parsed = strategy_of(step, strategy)
    if known:
        assume_workers(engines)
    assume_caches(engines, parsed, contexts, step.cache, step.store, step.batch_seeds(), reads)
    engine = engines[0]
    return estimate_step(engine, drawn, seeds, meshes[0]).shares, engine.inputs


def foreseen(step: Step, strategy: str, workers: int, hosts: int) -> list:
    """The same as :func:`counted`, from one process."""
    shares, inputs = estimated(step, strategy, workers, hosts)
    typed = isinstance(inputs, TypedInputs)
    for share in shares:
        if typed and any(inputs.columns.learnt):
            continue  # these rows come from their owners, from no tier
        others = [TIERS.index(tier) for tier in ("peers", "hosts")]
        assert share.messages[0].features == sum(share.row_bytes[tier] for tier in others)
        assert share.messages[0].ids == ID_BYTES * sum(share.counts.rows_from[tier] for tier in others)
    return [
        (
            share.counts,
            share.messages,
            (share.read.tolist(), share.taken.tolist()) if typed else None,
            (share.given.tolist(), share.moved.tolist()) if typed and any(inputs.columns.learnt) else None,
        )
        for share in shares
    ]


def check(step: Step, strategy: str, workers: int, hosts: int = 1) -> None:
    found, wanted = (way(step, strategy, workers, hosts) for way in (foreseen, counted))
    for worker, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one == other, (strategy, worker)
    assert sum(counts.sampled_edges for counts, *_ in found) > 0


def check_links(step: Step, strategy: str, workers: int, hosts: int) -> None:
    """What goes from one host to another in a whole step, all workers together."""
    groups = ThreadGroups(workers, hosts)
    groups.run(lambda context: run_worker(context, step, strategy))
    shares, _ = estimated(step, strategy, workers, hosts)
    of_layers = [each for share in shares for each in share.far[1 : 1 + len(step.fanouts)]]
    if None in of_layers:
        assert not ANSWERS.keys() >= set(strategy_of(step, strategy).placements), "placements of this library say it"
        pytest.skip("a placement does not say what goes from one host to another")
    known = [each for share in shares for each in share.far if each is not None]
    counted = bytes_far(groups)
    for kind, num_bytes in sum(known, Traffic()).to_json().items():
        assert num_bytes == counted[kind], (strategy, kind)
