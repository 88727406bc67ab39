"""What every worker will do in a step, found out from one sample of it; and the bytes of a step, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64, UInt64

from partita.core.estimates import AskedRows, FileReads, InputEstimate, LayerEstimate, SampledLayer
from partita.core.mesh import Mesh
from partita.core.records import Counts, RemoteDraws, Traffic, read_here
from partita.kernels import rank_masks
from partita.parallel.engine import Engine, MiniBatch


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """What a worker will do in a step.

    Attributes:
        counts: as :attr:`~partita.parallel.engine.MiniBatch.counts`.
        messages: as :func:`messages` gives them.
        far: what of each message goes from one host to another; ``None``: it goes to all workers alike.
        blocks: destinations, sources and edges that it computes with in each layer, layer 1 first; fractions of them
            where it has a fraction of their columns.
        ways: how each layer is computed, see :attr:`~partita.core.estimates.LayerEstimate.way`.
        read: input rows of each node type that it reads, for itself or for others; an untyped graph has one type.
        taken: input rows of each node type that its layer 1 takes.
        row_bytes: of the rows that each of :data:`~partita.core.records.TIERS` gives, see
            :attr:`~partita.core.records.Counts.rows_from`.
        files: what of the rows of its host it reads from files.
        given: learnt rows of each node type that it gives, to itself and to others, whose gradients come back.
        moved: the same, each row once.
    """

    counts: Counts
    messages: list[Traffic]
    far: list[Traffic | None]
    blocks: Float[np.ndarray, "K 3"]
    ways: tuple[str, ...]
    read: Int64[np.ndarray, "T"]
    taken: Int64[np.ndarray, "T"]
    row_bytes: tuple[int, ...]
    files: FileReads
    given: Int64[np.ndarray, "T"]
    moved: Int64[np.ndarray, "T"]

    @property
    def traffic(self) -> Traffic:
        """Bytes of all messages."""
        return sum(self.messages, Traffic())


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What all workers will do in a step.

    Attributes:
        shares: of each worker.
        reads: (n) who looks up each input row in its own tiers, aligned with the nodes of layer 1, see
            :attr:`~partita.core.estimates.SampledLayer.nodes`.
    """

    shares: list[WorkerEstimate]
    reads: UInt64[np.ndarray, "n"]


def messages(engine: Engine, batch: MiniBatch) -> list[Traffic]:
    """Bytes that leave one worker for another in a training step for a worker's batch, without the sizes sent ahead.

    Those of the input placement, of every layer, and of what draws for every layer: each sends messages of its own.
    """
    works = batch.works
    return _messages(engine, batch.inputs.traffic, [work.traffic for work in works], [work.remote for work in works])


DealtStep = tuple[Sequence[SampledLayer], UInt64[np.ndarray, "_"]]
"""What all workers together draw in a step, layer 1 (input side) first: each layer's sources are the destinations of
the one below, and the destinations of the last layer the seeds of the global batch; and which worker has each of these.
"""


def estimate_steps(
    engine: Engine, steps: Sequence[DealtStep], mesh: Mesh, epoch: int | None = None
) -> list[StepEstimate]:
    """What every worker will count in consecutive steps, found out without the others.

    Where rows come and go, see :class:`~partita.core.protocols.FeatureTier`, none is kept before the first step.

    Args:
        engine: of any worker, who need not be there.
        steps: what is drawn.
        mesh: of any worker.
        epoch: steps of an epoch, of which the first steps are; ``None``: all are of one.

    Raises:
        ConfigError: it cannot be known, see :class:`~partita.core.protocols.Sampler` and
            :class:`~partita.core.protocols.FeatureTier`.
    """
    layers = [_estimate_layers(engine, *step, mesh) for step in steps]
    asked = [
        _asked_rows(drawn[0], of_step[0].below, begins=epoch is not None and number % epoch == 0)
        for number, ((drawn, _), of_step) in enumerate(zip(steps, layers, strict=True))
    ]
    inputs = engine.inputs.estimate(asked, mesh)
    return [
        _step_estimate(engine, drawn, of_step, rows, reads, mesh)
        for (drawn, _), of_step, rows, reads in zip(steps, layers, asked, inputs, strict=True)
    ]


def estimate_step(
    engine: Engine, drawn: Sequence[SampledLayer], seeds: UInt64[np.ndarray, "B"], mesh: Mesh
) -> StepEstimate:
    """What every worker will count in a single step; see :func:`estimate_steps`."""
    return estimate_steps(engine, [(drawn, seeds)], mesh)[0]


def _estimate_layers(
    engine: Engine, drawn: Sequence[SampledLayer], seeds: UInt64[np.ndarray, "B"], mesh: Mesh
) -> list[LayerEstimate]:
    """Of each layer, layer 1 first."""
    asked, layers = seeds, list[LayerEstimate]()
    for layer in range(len(engine.placements), 0, -1):
        layers.insert(0, engine.estimators[layer - 1].estimate(layer, drawn[layer - 1], asked, mesh))
        asked = layers[0].below
    return layers


def _asked_rows(drawn: SampledLayer, by: UInt64[np.ndarray, "S"], *, begins: bool) -> AskedRows:
    """The input rows of the sources of layer 1: whoever asks for a node at several times reads its row once."""
    nodes, places = drawn.nodes
    if places is None:
        return AskedRows(nodes, by, begins)
    found = np.zeros(len(nodes), np.uint64)
    np.bitwise_or.at(found, places, by)
    return AskedRows(nodes, found, begins)


def _step_estimate(
    engine: Engine, drawn: Sequence[SampledLayer], layers: Sequence[LayerEstimate], rows: AskedRows,
    reads: InputEstimate, mesh: Mesh,
) -> StepEstimate:  # fmt: skip
    """Layers and input rows together, worker by worker."""
    taken = _by_type(engine, rows, mesh)
    edges = sum(rank_masks.count(each.drawing, mesh.size, of.degrees) for each, of in zip(layers, drawn, strict=True))
    remote = [_remote(engine, n, drawn[n - 1], each, mesh) for n, each in enumerate(layers, start=1)]
    shares, ways, input_far = list[WorkerEstimate](), tuple(each.way for each in layers), reads.far
    given, moved = (np.zeros_like(taken),) * 2 if reads.learnt is None else (reads.learnt.given, reads.learnt.moved)
    for worker in range(mesh.size):
        hits = tuple(reads.hits[worker].tolist())
        accesses = layers[0].accesses
        counts = Counts(
            sampled_edges=int(edges[worker]),
            computed_destinations=tuple(int(each.computed[worker]) for each in layers),
            input_rows_read=read_here(hits),
            row_reads=read_here(hits) if accesses is None else int(accesses[worker]),
            rows_from=hits,
        )
        sent = _messages(
            engine, reads.traffic[worker], [each.traffic[worker] for each in layers], [each[worker] for each in remote]
        )
        blocks = np.stack([each.columns * each.blocks[worker] for each in layers])
        files = reads.files[worker] if reads.files else FileReads()
        row_bytes = tuple(reads.bytes[worker].tolist())
        far: list[Traffic | None] = [input_far[worker]]
        far += [None if each.far is None else each.far[worker] for each in layers]
        far += [None] * (len(sent) - len(far))  # of sampling it is not known
        share = WorkerEstimate(
            counts, sent, far, blocks, ways, reads.read[worker], taken[worker], row_bytes, files, given[worker],
            moved[worker],
        )  # fmt: skip
        shares.append(share)
    return StepEstimate(shares, reads.reads)


def _by_type(engine: Engine, rows: AskedRows, mesh: Mesh) -> Int64[np.ndarray, "W T"]:
    """For each worker the input rows that it asks for, by node type."""
    types = engine.worker.topology.of_nodes.node_types
    if types is None:
        return rank_masks.count(rows.by, mesh.size)[:, None]
    kinds = types.of(rows.ids.numpy())
    return np.stack([rank_masks.count(rows.by[kinds == kind], mesh.size) for kind in range(types.count)], 1)


def _remote(engine: Engine, layer: int, drawn: SampledLayer, found: LayerEstimate, mesh: Mesh) -> list[RemoteDraws]:
    """For each worker what of a layer others draw for it."""
    topology = engine.worker.topology
    always = engine.worker.sampler.estimate(layer, topology)
    return [always + remote for remote in topology.estimate(drawn, found.drawing, mesh)]


def _messages(
    engine: Engine, inputs: Traffic, layers: Sequence[Traffic], remote: Sequence[RemoteDraws]
) -> list[Traffic]:
    sampler = engine.worker.sampler
    drawing = [engine.worker.topology_of(layer).traffic(each) for layer, each in enumerate(remote, start=1)]
    return [inputs, *layers, *drawing, *(sampler.traffic(layer, each) for layer, each in enumerate(remote, start=1))]
