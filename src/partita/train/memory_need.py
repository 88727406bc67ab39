"""What training takes of memory at most, from the sizes of its batches, its model and its settings.

Sizes of batches are bounds, see :mod:`partita.setup.batch_sizes`.
"""

from __future__ import annotations

from operator import mul

from partita.core.memory_need import MemoryNeed
from partita.infer.memory_need import inference_parts, own_limit
from partita.nn.layers import Layer
from partita.setup.batch_sizes import EDGE_BYTES, LayerSizes, batch_sizes, blocks_bytes
from partita.setup.inputs import DTYPES, is_encoded
from partita.setup.learnt import step_bytes
from partita.setup.model import FIX, MODEL_COPIES
from partita.setup.sampler import WHOLE, evaluation_sampler, lone_sampler
from partita.setup.tiers import looks_ahead, waiting_bytes
from partita.setup.topology import drawing_bytes, topology_bytes
from partita.train.job import Job

_MEMBER_COPIES = 6
"""Of the parameters, for every view with a model of its own: itself, two of the optimizer, the same in a checkpoint."""
_SEED_BYTES = 64
"""Of a seed of an epoch: the order of this one and the next, and targets."""
_CACHED_BYTES = 16
"""Of a node, where rows are cached: its rank, and where its row is."""


def training_need(job: Job) -> MemoryNeed:
    """The estimate of this worker, on the CPU; of memory of a device nothing is said."""
    config, store, model, context = job.config, job.store, job.model, job.team.context
    item, workers, layers = DTYPES[config.precision].itemsize, context.mesh.size, model.layers
    sampler = evaluation_sampler(config, store.schema)
    node_bytes = 0 if sampler is None else sampler.node_bytes
    whole, on_cpu = config.views == WHOLE, context.device.type == "cpu"
    batch = min(config.batch_size or job.num_seeds, job.num_seeds)
    # A worker may own all seeds of a batch, or be asked for rows that the seeds of all others need.
    apart = whole and not job.strategy.is_collective and config.seed_split == "even"
    sizes = batch_sizes(config, store, -(-batch // workers) if apart else batch, workers if apart else 1)
    rows = waiting = sizes[0].sources * layers[0].in_width * item
    if store.schema is not None:  # as they are read; and, where they are used, as they are encoded
        waiting = item * sum(
            min(sizes[0].sources, count) * width
            for count, width in zip(store.schema.num_nodes, store.type_widths, strict=True)
        )
        rows += waiting
    loads = (
        is_encoded(store, config)
        or not layers[0].sums_by_id(lone_sampler(config, store.schema).takes_all(1))
        or bool(config.cache or config.input_dropout or config.feature_memory is not None)
        or workers > 1
    )
    edge_bytes = [item * layer.edge_width for layer in layers]
    index = blocks_bytes(sizes, edge_bytes)
    if job.learnt is not None:  # as they are pulled, beside features, and their gradients
        learnt = [(job.learnt.size_of(kind), table.width) for kind, table in job.learnt.tables.items()]
        rows += 3 * item * sum(min(sizes[0].sources, count) * width for count, width in learnt)
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    pairs = list(zip(layers, sizes, strict=True))
    kept, passing = (sum(_kept(*pair, item) for pair in pairs), max(_passing(*pair, item) for pair in pairs))
    tables = store.num_nodes if config.topology_memory is None else 0
    parts = {
        "model": MODEL_COPIES * parameters,
        "activations": (kept + passing + rows * loads) * on_cpu,
        "batches": (1 + 2 * config.prefetch) * index + config.prefetch * waiting * loads,
        "sampling": (1 + config.prefetch) * _scratch(tables, sizes, node_bytes),
        "seeds": _SEED_BYTES * job.num_seeds,
        "views": job.views.memory_bytes,
    }
    if job.learnt is not None:
        parts["learnt rows"] = job.learnt.num_bytes + step_bytes(job.learnt, workers * sizes[0].sources)
    if whole and workers > 1:
        parts["exchange"] = 2 * on_cpu * max(size.sources * layer.in_width * item for layer, size in pairs)
    evaluation = inference_parts(
        model, store.num_nodes, store.num_edges, item=item, limit=config.memory_limit or own_limit(workers),
        node_bytes=node_bytes,
    )  # fmt: skip
    # Evaluation follows on training, and takes what that has left.
    left = parts["activations"] + parts["batches"] + parts["views"] + parts.get("exchange", 0)
    parts["evaluation"] = max(0, evaluation.pop("inference") - left) + sum(evaluation.values())
    if config.cache:
        column = store.num_nodes * layers[0].in_width * item
        if store.schema is not None:
            column = item * sum(map(mul, store.schema.num_nodes, store.type_widths))
        parts["cache"] = min(config.cache, column) + _CACHED_BYTES * store.num_nodes
    if config.feature_memory is not None:
        parts["feature rows"] = config.feature_memory
    if config.topology_memory is not None:
        drawing = (1 + config.prefetch) * drawing_bytes(config, store, sizes)
        parts["edges"] = topology_bytes(config, store) + drawing
    paged = job.learnt is not None and job.learnt.window > 0
    if paged or looks_ahead(config):
        parts["batches ahead"] = waiting_bytes(config, store, workers)
    if not whole and not job.views.sync.every_step:
        parts["models of views"] = _MEMBER_COPIES * parameters * store.num_parts
    return MemoryNeed.of(
        parts, threads=4 + 2 * config.prefetch + 4 * (workers > 1) + 4 * paged, sharers=context.mesh.workers
    )


def require_training(need: MemoryNeed, workers: int) -> MemoryNeed:
    """See that there is enough memory.

    Raises:
        ResourceError: there is not; with numbers.
    """
    return need.require("training" if workers == 1 else "a worker", FIX)


def _kept(layer: Layer, size: LayerSizes, item: int) -> int:
    """Bytes that forward keeps for backward: sums of rows, and what a layer, a norm and an activation return."""
    columns = 2 * layer.in_width + 4 * layer.out_width
    split, of_edges = layer.split, 0
    if split is None:  # anything may be kept of an edge
        of_edges = size.edges * (layer.in_width + layer.out_width) + size.sources * layer.out_width
    elif split.message_width is not None or split.query_width:
        of_edges = size.edges * 4 * split.query_width + size.sources * (split.message_width or layer.in_width)
    if split is not None:
        of_edges += size.edges * split.columns_per_edge
    return item * (size.destinations * columns + of_edges)


def _passing(layer: Layer, size: LayerSizes, item: int) -> int:
    """Bytes of gradients while a layer is gone back through."""
    columns = layer.in_width + 2 * layer.out_width
    of_edges = 0 if layer.split is not None else size.edges * (layer.in_width + layer.out_width)
    return item * (size.destinations * columns + 2 * size.sources * layer.in_width + of_edges)


def _scratch(nodes: int, sizes: list[LayerSizes], node_bytes: int) -> int:
    """Bytes of a thread that samples: numbers of sources, what is drawn, and walks."""
    edges, destinations = max(each.edges for each in sizes), max(each.destinations for each in sizes)
    return max(4 * nodes, 12 * edges) + EDGE_BYTES * edges + node_bytes * destinations
