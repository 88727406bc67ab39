"""What one process estimates of consecutive steps with a look ahead, beside what every worker counts in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from estimating import engine_of, strategy_of
from feature_tiers import file_of
from steps import Step
from torch import Tensor

from partita.comm.fake import FakeContext
from partita.comm.threads import ThreadGroups
from partita.core.estimates import SampledLayer
from partita.core.keys import StepKey
from partita.core.mesh import Mesh
from partita.features.host import HostRows
from partita.features.rows import FeatureColumn
from partita.features.typed import TypedColumns
from partita.kernels import Relabeller
from partita.parallel.caching import assume_caches, assume_workers, fill_caches
from partita.parallel.forecast import estimate_steps, messages
from partita.parallel.seed_split import share_of
from partita.sample.blocks import sample_block
from partita.sample.seeds import SeedOrder

STEPS, EPOCH, SEEDS = 7, 4, 12


@dataclass(frozen=True)
class FileStep(Step):
    """A step whose input rows are in files as well."""

    def rows(self, mesh: Mesh) -> HostRows:
        return in_files(super().rows(mesh))


def in_files(rows: FeatureColumn | HostRows) -> HostRows:
    """The same rows, which are in files as well."""
    if not isinstance(rows, HostRows):
        rows = HostRows(rows)
    columns = [rows.home] if rows._hot is None else [rows.home, rows._hot]
    return HostRows(
        rows.home, rows._share, rows._first, rows._hot_ids, rows._hot, columns=rows.columns,
        files=[file_of(column) for column in columns],
    )  # fmt: skip


def typed_in_files(rows: TypedColumns) -> TypedColumns:
    """Likewise, of every type."""
    return replace(rows, columns=tuple(None if each is None else in_files(each) for each in rows.columns))


def batches_of(step: Step) -> list[tuple[StepKey, Tensor]]:
    """Keys and seeds of consecutive steps, which have seeds in common."""
    nodes = step.batch_seeds()
    generator = torch.Generator().manual_seed(3)
    return [
        (StepKey(seed=5, epoch=0, step=number), nodes[torch.randperm(len(nodes), generator=generator)[:SEEDS]])
        for number in range(STEPS)
    ]


def counted(step: Step, strategy: str, workers: int, hosts: int) -> list[list]:
    """Of every worker what it counts in each step, when it announces, prepares and reads them one after the other."""

    def work(context):
        engine, parsed, offsets = engine_of(context, step, strategy), strategy_of(step, strategy), step.part_offsets()
        share = partial(share_of, mesh=context.mesh, seed_split="owner", part_offsets=offsets)
        order = SeedOrder(step.batch_seeds(), 5, SEEDS)
        fill_caches(
            engine, parsed, context, step.cache, step.store, offsets, order, share, lambda at: StepKey(5, 0, at)
        )
        batches = [engine.sample(share(seeds), key) for key, seeds in batches_of(step)]
        found, announced = [], 0
        for number in range(STEPS):
            if number and number % EPOCH == 0:
                engine.inputs.restart()
            end = min(STEPS, (number // EPOCH + 1) * EPOCH)
            while announced < min(end, number + 1 + engine.inputs.look_ahead):
                engine.announce(batches[announced])
                announced += 1
            batch, before = engine.prepare(batches[number]), engine.inputs.disk_reads()
            engine.load(batch)
            after = engine.inputs.disk_reads()
            missed = (after.asked - before.asked) - (after.kept - before.kept) if step.cache.memory is not None else 0
            found.append((batch.counts, messages(engine, batch), missed))
        return found

    return ThreadGroups(workers, hosts).run(work)


def foreseen(step: Step, strategy: str, workers: int, hosts: int) -> list[list]:
    """The same, from one process."""
    meshes = [Mesh.of(rank, workers, workers // hosts) for rank in range(workers)]
    contexts = [FakeContext(mesh) for mesh in meshes]
    engines = [engine_of(context, step, strategy) for context in contexts]
    assume_workers(engines)
    reads = torch.zeros(workers, 0, dtype=torch.int32)
    parsed = strategy_of(step, strategy)
    assume_caches(engines, parsed, contexts, step.cache, step.store, step.batch_seeds(), reads)
    steps = [(drawn_of(step, key, seeds), dealt(step, seeds, meshes)) for key, seeds in batches_of(step)]
    estimates = estimate_steps(engines[0], steps, meshes[0], EPOCH)
    return [
        [(of_step.shares[w].counts, of_step.shares[w].messages, of_step.shares[w].files.rows) for of_step in estimates]
        for w in range(workers)
    ]


def drawn_of(step: Step, key: StepKey, requests: Tensor) -> list[SampledLayer]:
    """What all workers together draw, layer 1 first."""
    drawn, scratch = [], Relabeller(step.store.num_nodes)
    sampler = step.sampler(FakeContext(Mesh.of(0, 1, 1)).group())
    for layer in range(len(step.fanouts), 0, -1):
        drawn.insert(0, SampledLayer(sample_block(step.topology(), requests, key, layer, sampler, relabel=scratch)))
        requests = drawn[0].src
    return drawn


def dealt(step: Step, seeds: Tensor, meshes: list[Mesh]) -> np.ndarray:
    """Which worker has each seed, as masks."""
    found = np.zeros(len(seeds), np.uint64)
    place = {seed: at for at, seed in enumerate(seeds.tolist())}
    for rank, mesh in enumerate(meshes):
        for seed in share_of(seeds, mesh, "owner", step.part_offsets()).tolist():
            found[place[seed]] |= np.uint64(1 << rank)
    return found


def check(step: Step, strategy: str, workers: int, hosts: int) -> list[list]:
    """Sees that both are the same, for every worker and step; returns them."""
    found, wanted = (way(step, strategy, workers, hosts) for way in (foreseen, counted))
    for worker, (ones, others) in enumerate(zip(found, wanted, strict=True)):
        for number, (one, other) in enumerate(zip(ones, others, strict=True)):
            assert one == other, (strategy, worker, number)
    return wanted
