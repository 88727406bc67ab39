"""One training step of a strategy, and the same step in one process: what the oracle compares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lacking import lacking, some_edges
from meters import bytes_sent, reset
from small_columns import small_column
from torch import Tensor, nn
from torch.nn import functional

from partita.comm.axis import Axis, Workers, make_axis
from partita.comm.group import Group
from partita.comm.threads import ThreadGroups
from partita.core.keys import StepKey, fold
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs, Sampler, Topology
from partita.core.records import Counts, RemoteDraws, Sampled, Traffic
from partita.features.host import HostRows
from partita.features.learnt import LazyAdam, LearntRows, RowOwners
from partita.features.rows import FeatureColumn
from partita.features.tiers import NO_CACHE, CacheSettings
from partita.graph.hashing import normal
from partita.graph.store import GraphStore
from partita.nn.initialize import name_key
from partita.nn.layers import LAYERS, Layer, PygLayer
from partita.nn.layers.residual import Residual
from partita.nn.model import Model
from partita.parallel.block_worker import BlockWorker
from partita.parallel.caching import fill_caches
from partita.parallel.engine import Engine, MiniBatch
from partita.parallel.forecast import messages
from partita.parallel.placements.data import Data
from partita.parallel.seed_split import SeedSplit, share_of
from partita.parallel.strategies import build_engine, parse_strategy
from partita.sample.collective import CollectiveTopology
from partita.sample.labor import LaborWise
from partita.sample.samplers import LayerWise, NodeWise
from partita.sample.seeds import SeedOrder
from partita.sample.topology import ArrayTopology, LocalTopology, as_tensor

KEY = StepKey(seed=5, epoch=2, step=3)

SMALL = {torch.int8: "int8", torch.uint8: "int4"}
"""Dtypes of rows of small integers, by which a step names them."""

EDGE_LAYERS = ("gatv2", "gine", "transformer")
"""Layers that read the features of edges."""
EDGE_WIDTH = 5

Share = Callable[[Workers, Tensor], Tensor]


def make_layer(kind: str, width: int, out: int, last: bool) -> Layer:
    """A layer of a model; several heads where it has heads, also in the last layer; ``residual-`` before its kind."""
    if kind.startswith("residual-"):
        return Residual(make_layer(kind.removeprefix("residual-"), width, out, last))
    if kind in ("pyg-graph", "pyg-sage"):
        from torch_geometric.nn import GraphConv, SAGEConv  # seconds to import, and every worker imports this module

        return PygLayer({"pyg-graph": GraphConv, "pyg-sage": SAGEConv}[kind](width, out), width, out)
    name, _, option = kind.partition("-")
    options: dict[str, Any] = {"aggregator": option} if option in ("max", "sum") else {}
    if option == "weighted":
        options["edge_weights"] = True
    if name in EDGE_LAYERS:
        options["edge_width"] = EDGE_WIDTH
    if name in ("gatv2", "transformer"):
        options["heads"] = 2 if last else 3
    if name == "gat":
        options = {"heads": 2 if last else 3, "attn_dropout": 0.3 if option == "dropout" else 0.0}
    return LAYERS.find(name).for_model(width, out, last=last, **options)


@dataclass(frozen=True)
class Step:
    """What is trained, on what. The features are Gaussian by formula: attention over big integers is saturated.

    Attributes:
        store: the graph.
        kind: of the layers, see :func:`make_layer`.
        fanouts: layer 1 first.
        budgets: of a layer as a whole, layer 1 first, of typed graphs of all relations or of each; then the fanouts
            only say how many layers there are.
        labor: of the sampler labor, batch and layer dependency; ``None`` for other samplers.
        hidden: columns between layers.
        features: columns of the input.
        parts: where parts begin and end; ``None`` for the store's own.
        seeds: original indices of the seeds of the global batch.
        cache: which input rows every worker keeps copies of.
        split_features: a host has the rows of its own nodes, and a few others.
        split_topology: a worker draws only for the nodes that it owns.
        lost: one of so many edges carries no messages; 0: all do.
        model_seed: picked so that no gradient vanishes: what is rounding only cannot be compared.
    """

    store: GraphStore
    kind: str = "sage"
    fanouts: tuple[int, ...] = (3, 2, 2)
    budgets: tuple[int | tuple[int, ...], ...] = ()
    labor: tuple[int, bool] | None = None
    hidden: int = 9
    features: int = 7
    classes: int = 2
    dtype: torch.dtype = torch.float64
    stored: torch.dtype | None = None
    dropout: float = 0.0
    input_dropout: float = 0.0
    parts: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = tuple(range(0, 60, 4))
    replace: bool = False
    weighted: bool = False
    model_seed: int = 27
    autocast: bool = False
    cache: CacheSettings = NO_CACHE
    split_features: bool = False
    split_topology: bool = False
    lost: int = 0

    def model(self) -> Model:
        widths = [self.features, *[self.hidden] * (len(self.fanouts) - 1), self.classes]
        last = len(self.fanouts) - 1
        layers = [make_layer(self.kind, i, o, n == last) for n, (i, o) in enumerate(pairwise(widths))]
        model = Model.from_layers(layers, activation="elu", dropout=self.dropout)
        model.reset(self.model_seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() < 2:  # biases and eps: not 0
                    parameter += torch.linspace(0.1, 0.4, parameter.numel())
        return model.to(self.dtype).train()

    def learnt_rows(self, model: Model, group: Group) -> LearntRows | None:
        """The tables of the learnt rows of a worker, which the model then reads; ``None`` without any."""
        encoder = model.encoder
        if encoder is None or not any(encoder.learnt):
            return None
        types = self.store.node_types
        owners = RowOwners.of(types, self.part_offsets(), group.size)
        found = LearntRows(encoder.node_types, encoder.learnt, owners, group, self.dtype, LazyAdam())
        original = self.original()
        found.initialize(
            partial(name_key, 3), lambda width: 0.8, lambda kind, rows: original[types.ids(kind, rows)].numpy()
        )
        encoder.source = found
        return found

    def original(self) -> Tensor:
        return LocalTopology(self.store).original(torch.arange(self.store.num_nodes))

    def column(self) -> FeatureColumn:
        n = self.store.num_nodes
        x = torch.from_numpy(normal(fold(0, 7), np.arange(n * self.features)).reshape(n, -1))
        x = x[self.original()].to(torch.float32 if self.stored in SMALL else self.stored or self.dtype)
        if self.stored in SMALL:
            return small_column(x, SMALL[self.stored], dtype=self.dtype, dropout=self.input_dropout)
        return FeatureColumn(x, dtype=self.dtype, dropout=self.input_dropout)

    def inputs(self) -> Inputs | FeatureColumn:
        """What reads all input rows in one process."""
        return self.column()

    def rows(self, mesh: Mesh) -> FeatureColumn | HostRows:
        """The input rows that a host has."""
        column, parts = self.column(), self.part_offsets().tolist()
        if not self.split_features:
            return column
        per_host = (len(parts) - 1) // mesh.hosts
        first, last = (parts[(mesh.host + more) * per_host] for more in (0, 1))
        hot = torch.tensor([v for v in range(0, self.store.num_nodes, 9) if not first <= v < last])
        home, extra = replace(column, x=column.x[first:last]), replace(column, x=column.x[hot])
        return HostRows(home, self.store.num_nodes, first, hot, extra)

    def topology(self) -> LocalTopology:
        return LocalTopology(self.store, replace=self.replace, weighted=self.weighted)

    def whole_topology(self) -> ArrayTopology:
        """What a process draws from that draws for all workers."""
        return self.topology()

    def sampler(self, group: Group) -> Sampler:
        if self.labor is not None:
            batches, layers = self.labor
            return LaborWise(self.fanouts, batch_dependency=batches, layer_dependency=layers)
        return LayerWise(self.budgets, group, weighted=self.weighted) if self.budgets else NodeWise(self.fanouts)

    def topology_of(self, context: Workers) -> Topology:
        """What a worker draws from."""
        if not self.split_topology:
            return self.topology()
        offsets = self.part_offsets()
        axis = make_axis(context, "all" if len(offsets) - 1 == context.mesh.size else "workers", offsets)
        return CollectiveTopology(OwnTopology(self.store, axis, replace=self.replace, weighted=self.weighted), axis)

    def key(self) -> StepKey:
        """Of the step, with the edges that carry no messages in it."""
        return replace(KEY, excluded=some_edges(self.topology(), self.lost)) if self.lost else KEY

    def part_offsets(self) -> Tensor:
        return as_tensor(self.store.part_offsets) if self.parts is None else torch.tensor(self.parts)

    def requests(self, seeds: Tensor) -> Tensor:
        """The nodes whose rows are wanted."""
        return seeds

    def loss_sum(self, model: nn.Module, output: Tensor, seeds: Tensor) -> Tensor:
        """Of the seeds of a worker."""
        labels = (self.original()[seeds.long().cpu()] % self.classes).to(output.device)
        return functional.cross_entropy(output, labels, reduction="sum")

    def batch_seeds(self) -> Tensor:
        place = torch.argsort(self.original())
        return place[list(self.seeds)].to(self.topology().id_dtype)


class OwnTopology(LocalTopology):
    """A topology that knows no edges but those into the nodes of one worker."""

    def __init__(self, store: GraphStore, axis: Axis, *, replace: bool, weighted: bool) -> None:
        super().__init__(store, replace=replace, weighted=weighted, types=True)
        self._axis = axis

    def at_owners(self, ids: Tensor, *arguments: Any, **options: Any) -> Sampled:
        self._check_own(ids)
        return super().at_owners(ids, *arguments, **options)

    def _check_own(self, dst: Tensor) -> None:
        assert bool((self._axis.owner(dst) == self._axis.rank).all()), "asked for another worker's nodes"


@dataclass
class ShareOutcome:
    """What one worker's share of a step gave; the bytes by message, see :func:`~partita.parallel.forecast.messages`."""

    loss: Tensor
    gradients: dict[str, Tensor]
    output: dict[int, Tensor]
    batch: MiniBatch
    engine: Engine
    messages: list[Traffic]


@dataclass
class Outcome:
    """What a step gave, over all workers; the engine is that of the first."""

    loss: Tensor
    gradients: dict[str, Tensor]
    output: dict[int, Tensor]
    batches: list[MiniBatch]
    sent: dict[str, int] = field(default_factory=dict)
    engine: Engine | None = None
    messages: list[Traffic] = field(default_factory=list)

    @property
    def traffic(self) -> Traffic:
        return sum(self.messages, Traffic())

    @property
    def remote(self) -> list[RemoteDraws]:
        """What others drew, of each layer."""
        works = zip(*(batch.works for batch in self.batches))
        return [sum((work.remote for work in layer), RemoteDraws()) for layer in works]

    @property
    def counts(self) -> list[Counts]:
        return [batch.counts for batch in self.batches]


def run_share(
    step: Step, engine: Engine, model: nn.Module, seeds: Tensor, key: StepKey, learnt: LearntRows | None = None
) -> ShareOutcome:
    """Forward and backward of one worker. Gradients of learnt rows are of all rows of a type, 0 of those of others."""
    batch = engine.sample(step.requests(seeds), key, seeds=seeds)
    with torch.autocast("cpu", torch.bfloat16, enabled=step.autocast):
        output = engine.forward(batch).to(step.dtype)
    loss = step.loss_sum(model, output, seeds) / len(step.seeds)
    loss.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    if learnt is not None:
        learnt.collect()
        gradients |= {f"learnt/{kind}": rows for kind, rows in of_all_rows(learnt).items()}
    outputs = dict(zip(batch.requests.tolist(), output.detach()))
    return ShareOutcome(loss.detach(), gradients, outputs, batch, engine, messages(engine, batch))


def of_all_rows(learnt: LearntRows) -> dict[int, Tensor]:
    """The collected gradients of each type."""
    found = {}
    for kind, table in learnt.tables.items():
        found[kind] = torch.zeros(learnt.size_of(kind), table.rows.shape[1], dtype=table.rows.dtype)
    for each in learnt._gradients:
        found[each.kind][each.at + learnt.tables[each.kind].first] += each.values
    return found


def reference(step: Step) -> Outcome:
    """``[Data] * K`` in one process on the global batch, in a graph that has no edge without messages."""
    model, topology, key = step.model(), step.topology(), step.key()
    whole = topology if key.excluded is None else lacking(topology, key.excluded)
    worker = BlockWorker(model, whole, step.inputs(), step.sampler(Group.alone()), step.dtype)
    engine = Engine([Data(worker)] * len(step.fanouts), worker)
    learnt, key = step.learnt_rows(model, Group.alone()), replace(key, excluded=None)
    done = run_share(step, engine, model, step.batch_seeds(), key, learnt)
    return Outcome(done.loss, done.gradients, done.output, [done.batch])


def keys_of_dry_run(step: int) -> StepKey:
    """Those by which caches are filled."""
    return StepKey(KEY.seed, 0, step)


def run_worker(
    context: Workers, step: Step, strategy: str, seed_split: SeedSplit = "owner", *, model: Model | None = None,
    share: Share | None = None,
) -> ShareOutcome:  # fmt: skip
    """One worker's part of the step."""
    model = model or step.model()
    offsets, seeds = step.part_offsets(), step.batch_seeds()
    parsed = parse_strategy(strategy, len(step.fanouts))
    rows = step.rows(context.mesh)
    engine = build_engine(
        parsed, model, step.topology_of(context), rows, step.sampler(context.group("all", "sample")), step.dtype,
        context, offsets, step.cache,
    )  # fmt: skip
    deal_out = (lambda found: share(context, found)) if share else (
        lambda found: share_of(found, context.mesh, seed_split, offsets)
    )  # fmt: skip
    order = SeedOrder(seeds, KEY.seed, 6)
    fill_caches(
        engine,
        parsed,
        context,
        step.cache,
        step.store,
        offsets,
        order,
        deal_out,
        keys_of_dry_run,
    )
    learnt = step.learnt_rows(model, context.group("all"))
    reset(context.meter)
    mine = deal_out(seeds)
    return run_share(step, engine, model, mine, step.key(), learnt)


def distributed(
    step: Step, strategy: str, workers: int, *, hosts: int = 1, seed_split: SeedSplit = "owner",
    share: Share | None = None,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Outcome:  # fmt: skip
    """The same step on several workers, each in a block of ``around``: losses and gradients are summed."""
    groups = ThreadGroups(workers, hosts)
    models = [step.model() for _ in range(workers)]  # PyG's initialization draws from one generator

    def work(context: Workers) -> ShareOutcome:
        with around():
            return run_worker(context, step, strategy, seed_split, model=models[context.mesh.rank], share=share)

    done = groups.run(work)
    return Outcome(
        loss=torch.stack([each.loss for each in done]).sum(),
        gradients={n: torch.stack([each.gradients[n] for each in done]).sum(0) for n in done[0].gradients},
        output={seed: row for each in done for seed, row in each.output.items()},
        batches=[each.batch for each in done],
        sent=bytes_sent(groups),
        engine=done[0].engine,
        messages=[sum(part, Traffic()) for part in zip(*(each.messages for each in done))],
    )


def difference(found: Outcome | ShareOutcome, wanted: Outcome, *, least: float = 1e-6) -> float:
    """Largest difference of the loss and of any gradient, each relative to its largest element.

    A gradient that is 0 but for rounding (a bias of the keys that a softmax takes) is compared with ``least`` of the
    others.
    """
    least *= max(float(gradient.abs().max()) for gradient in wanted.gradients.values())
    pairs = [(found.loss, wanted.loss), *((found.gradients[n], wanted.gradients[n]) for n in wanted.gradients)]
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), least) for a, b in pairs)
