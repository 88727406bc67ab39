"""Rates and links of a machine that a file describes: from the widths of the layers, not from measurements.

Products take their operations at the processor's rate, or their rows at the rate of its memory, whichever is longer.
Everything else takes what it reads and writes at the rate of the memory. One thing is done after another.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from math import ceil, log2

import torch
from torch import Tensor

from partita.comm.meter import LINKS
from partita.config import Config
from partita.core.errors import ConfigError
from partita.core.machine import now
from partita.core.mesh import Mesh
from partita.core.records import TIERS
from partita.nn.layers import Layer
from partita.nn.model import Model
from partita.nn.work import LayerWork, Product
from partita.plan.links import Curve, Links
from partita.plan.machine import Machine, Processor
from partita.plan.rates import PerBlock, PerRow, Rates
from partita.setup.inputs import DTYPES
from partita.setup.optim import make_optimizer

INDEX_BYTES = 8
"""Of an edge that is read."""
POST_ACCESSES = 5
"""To an entry of a layer's result in normalization, activation and dropout as one: forward reads and writes it,
backward reads it and its gradient, and writes a gradient."""
EDGE_ACCESSES = 4
"""To a column that is computed for an edge: it is written and read, forward and backward."""
HANDLED_ACCESSES = 5
"""To a byte of a row that travels: read and written where it is picked; read, added to another and written there."""
ID_ACCESSES = 16
"""To an id that travels: passes of sorting it by owner and of finding the distinct ones, each a read and a write."""
_SPAN = 1e9
"""Bytes at the end of a line, which goes on beyond."""


def layer_rates(layer: Layer, number: int, processor: Processor, item: int) -> tuple[PerBlock, PerBlock]:
    """What a layer takes, forward and backward, with what follows it.

    Args:
        layer: one of a model.
        number: 1 (input side) to K.
        processor: that computes it.
        item: bytes of an entry.

    Returns:
        Seconds, and bytes that are kept from forward to backward, for each destination, source and edge of its block.

    Raises:
        ConfigError: it is not known what the layer computes.
    """
    work = layer.known_work()
    if work is None:
        raise ConfigError(
            f"it is not known what the layer '{layer.name}' computes",
            where=f"layer {number}",
            fix="Plan with --model sage, gcn, gat, gin, graphconv or mlp, or measure on the machine itself",
        )
    return _seconds(layer, work, number, processor, item), _kept(layer, work, number, item)


def _seconds(layer: Layer, work: LayerWork, number: int, processor: Processor, item: int) -> PerBlock:
    byte = 1 / processor.memory_bandwidth.value
    each = {"destination": POST_ACCESSES * item * layer.out_width * byte, "source": 0.0, "edge": 0.0}
    for product in work.products:
        passes = 3 if number > 1 or not product.first else 2  # the result, and the gradients of weights and of rows
        each[product.of] += passes * _product_seconds(product, processor, item)
    row = item * work.summed
    if row:
        each["edge"] += (INDEX_BYTES + row) * byte
        each["destination"] += row * byte
        if number > 1 or work.projected:
            reads = 3 if work.per_edge else 1  # the gradient of a weight needs both ends of its edge
            each["edge"] += (INDEX_BYTES + reads * row) * byte
            each["source"] += row * byte
    each["edge"] += EDGE_ACCESSES * item * work.per_edge * byte
    return PerBlock(processor.layer_time.value, each["destination"], each["source"], each["edge"])


def _product_seconds(product: Product, processor: Processor, item: int) -> float:
    """Of one row: 2 operations for each entry of the matrix, or the row read and its product written."""
    operations = 2 * product.in_width * product.out_width
    return max(
        operations / processor.products.value,
        item * (product.in_width + product.out_width) / processor.memory_bandwidth.value,
    )


def _kept(layer: Layer, work: LayerWork, number: int, item: int) -> PerBlock:
    """Input rows (of other layers those that the layer below has given), sums, inner products, and the result twice."""
    source = layer.in_width if number == 1 else 0
    source += sum(each.out_width for each in work.products if each.of == "source")
    inner = sum(each.in_width for each in work.products if not each.first)
    return PerBlock(0.0, item * (work.summed + inner + 2 * layer.out_width), item * source, item * work.per_edge)


def described_rates(machine: Machine, config: Config, model: Model, mesh: Mesh, *, by_time: bool = False) -> Rates:
    """What a planner knows of a machine that is not here.

    Args:
        machine: described.
        config: the settings of a run.
        model: of the run, of an untyped graph.
        mesh: of any worker.
        by_time: neighbors are sampled by time: rows that were read once are repeated for layer 1.

    Raises:
        ConfigError: it is not known what a layer computes.
    """
    item, processor = DTYPES[config.precision].itemsize, machine.processor
    layers = [layer_rates(each, number, processor, item) for number, each in enumerate(model.layers, start=1)]
    stages, kept = (tuple(each) for each in zip(*layers, strict=True))
    model_bytes = _model_bytes(model, config)
    byte = 1 / processor.memory_bandwidth.value
    if by_time:
        repeated = (INDEX_BYTES + 2 * item * model.widths[0]) * byte
        stages = (replace(stages[0], source=stages[0].source + repeated), *stages[1:])
    from_host = min(machine.host_link.shared_by, mesh.workers) / machine.host_link.bandwidth.value
    # Rows of other workers and hosts travel as messages do; their owners read them from their own cache and host.
    tiers = {"cache": 2 * byte, "host": from_host, "peers": 0.0, "hosts": 0.0}
    return Rates(
        sampled_edge=1 / processor.sampling.value,
        inputs=(PerRow(0.0),),
        handled_id=2 * ID_ACCESSES * INDEX_BYTES * byte,
        handled_byte=HANDLED_ACCESSES * byte,
        stages=stages,
        kept=kept,
        together=1.0,
        optimizer=processor.layer_time.value + 2 * model_bytes * byte,
        model_bytes=model_bytes,
        tier_byte=tuple(tiers[tier] for tier in TIERS),
    )


def _model_bytes(model: Model, config: Config) -> int:
    """Of the parameters, their gradients, and what the optimizer remembers."""
    parameters = list(deepcopy(model).parameters())
    optimizer = make_optimizer(parameters, config)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    states = [each for state in optimizer.state.values() for each in state.values() if isinstance(each, Tensor)]
    return sum(each.nbytes for each in (*parameters, *parameters, *states))


def described_links(machine: Machine, mesh: Mesh, where: str = "machine") -> Links:
    """What workers exchange rows and sum gradients over.

    An exchange takes a latency, and what a worker sends at its share of the link: of the network, which the workers of
    a host share. A sum takes a latency for each of the 2 log2(workers) rounds of a tree; its bytes go round a ring,
    which leaves every host once. As measured ones do, the curve says what it takes if all workers of a host sum
    at once.

    Args:
        machine: described.
        mesh: of any worker.
        where: the machine is from.

    Raises:
        ConfigError: there are several hosts, and no network.
    """
    near, network = machine.processor_link, machine.network
    send, added = dict[str, Curve](), dict[str, Curve]()
    rounds = 2 * ceil(log2(mesh.size)) if mesh.size > 1 else 0
    same_host, other_host = LINKS
    if mesh.workers > 1:
        send[same_host] = _line(near.latency.value, near.bandwidth.value)
        added[same_host] = _line(rounds * near.latency.value, near.bandwidth.value)
    if mesh.hosts > 1:
        if network is None:
            raise ConfigError(
                f"is missing, and {mesh.hosts} hosts need one",
                where=f"{where}, network",
                fix="Write its latency and its bandwidth, or plan for one host",
            )
        send[other_host] = _line(network.latency.value, network.bandwidth.value / mesh.workers)
        slower = min(network.bandwidth.value, near.bandwidth.value if mesh.workers > 1 else network.bandwidth.value)
        added[other_host] = _line(rounds * network.latency.value, slower / mesh.workers)
    return Links(send, added, mesh.hosts, mesh.workers, {"described": machine.name}, now())


def _line(latency: float, bandwidth: float) -> Curve:
    """Seconds by bytes: a latency, then a rate."""
    return Curve((1.0, _SPAN), (latency + 1.0 / bandwidth, latency + _SPAN / bandwidth))
