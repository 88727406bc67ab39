"""A model of the shop's graph in plain PyTorch, with the neighbors that PyG's ``NeighborLoader`` would draw by time.

pyg-lib, which PyG samples with, has no wheel everywhere, so what it does is written out in NumPy, from its
documentation (``time_attr``, ``disjoint=True``, ``temporal_strategy``): every seed has a subgraph of its own, in which
a node is once; from each relation of a node that was reached so many neighbors are taken that are not later than the
seed: random ones without replacement ("uniform"), or the latest ("last"). The model is that of RelBench's baseline with
means: an encoder for each table, an encoding of the time between row and seed, layers of SAGE with weights for each
relation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from shop_data import Columns, Questions
from shop_flat import area, of_kinds
from torch import Tensor, nn
from torch.nn import functional

from partita.sources.shop.tables import DAY, NUMBER, TABLES, TEXT, WHOLE

_KINDS = 64
"""A column of text with more distinct ones than this is none of categories."""
_CLOCK = 40
"""Bits of the time in numbers that are in the order of nodes and times."""
_ALWAYS = 0
"""The time of rows that have none."""


@dataclass(frozen=True)
class Relation:
    """Edges from rows to rows of tables, by their ends and in order of time.

    Attributes:
        source, name, target: as in the graph that is made of the database.
        begins: where the edges to each row of the target begin.
        sources: rows at their beginnings.
        keys: target and time of each edge in one number.
    """

    source: str
    name: str
    target: str
    begins: np.ndarray
    sources: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, source: str, name: str, target: str, ends: tuple[np.ndarray, np.ndarray], graph: Graph) -> Relation:
        sources, targets = ends
        keys = targets << _CLOCK | graph.times[source][sources]
        order = np.argsort(keys, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=graph.counts[target]))])
        return cls(source, name, target, begins, sources[order], keys[order])


class Graph:
    """The graph of the tables: a node for each row, and both directions of each foreign key; questions send nothing.

    Args:
        tables: of the shop.
        questions: that are asked.
        table: of the questions.
    """

    def __init__(self, tables: dict[str, Columns], questions: Questions, table: str = "churn") -> None:
        names = ("customers", "products", "purchases", "reviews", table)
        self.table = table
        self.counts = {name: len(tables[name][TABLES[name].key[0]]) for name in names}
        self.times = {
            name: tables[name][column] if (column := TABLES[name].time) else np.full(self.counts[name], _ALWAYS)
            for name in names
        }
        self.x = {name: torch.from_numpy(_features(name, tables[name], questions.val_time)) for name in names}
        self.relations = list[Relation]()
        for name in names:
            for column, other in TABLES[name].refers.items():
                rows, parents = np.arange(self.counts[name]), tables[name][column]
                self.relations.append(Relation.of(other, f"rev_{column}", name, (parents, rows), self))
                if name != table:
                    self.relations.append(Relation.of(name, column, other, (rows, parents), self))


def _features(name: str, columns: Columns, val_time: int) -> np.ndarray:
    """Numbers with mean 0 and deviation 1, and a column for each category, of what is known before validation."""
    table, found = TABLES[name], list[np.ndarray]()
    known = columns[table.time] < val_time if table.time else np.full(len(columns[table.key[0]]), True)
    for column, kind in table.columns.items():
        if column in (*table.key, *table.refers, "churned"):
            continue
        values = columns[column]
        if kind in (WHOLE, NUMBER):
            missing = np.isnan(values)
            mean, deviation = np.nanmean(values[known]), np.nanstd(values[known])
            found.append(np.where(missing, 0, (values - mean) / max(deviation, 1e-6)))
            if missing.any():
                found.append(missing)
        elif kind == TEXT and len(kinds := of_kinds(values[known])[1]) <= _KINDS:
            found += [values == each for each in kinds]
    return np.column_stack(found).astype(np.float32) if found else np.ones((len(known), 1), np.float32)


@dataclass
class Batch:
    """Subgraphs of seeds.

    Attributes:
        nodes: rows of each table that were reached, those of earlier hops first.
        seeds: of each node, whose it is.
        reached: for each table, how many nodes there are after 0, 1, ... hops.
        edges: for each hop and relation (by its position), the ends: positions in ``nodes`` of their tables.
    """

    nodes: dict[str, np.ndarray]
    seeds: dict[str, np.ndarray]
    reached: dict[str, list[int]]
    edges: list[dict[int, tuple[np.ndarray, np.ndarray]]] = field(default_factory=list)

    @property
    def num_edges(self) -> int:
        return sum(len(src) for hop in self.edges for src, _ in hop.values())


def sample(
    graph: Graph,
    rows: dict[str, np.ndarray],
    asked: np.ndarray,
    fanouts: Sequence[int],
    random: np.random.Generator,
    *,
    last: bool = False,
) -> Batch:
    """Draw a subgraph for each seed.

    Args:
        graph: that is drawn from.
        rows: of tables, the seeds, which are numbered one table after another.
        asked: their times.
        fanouts: neighbors of each relation, of seeds first.
        random: what is drawn from.
        last: take the latest neighbors in place of random ones.
    """
    empty = np.zeros(0, np.int64)
    nodes, seeds = dict.fromkeys(graph.counts, empty), dict.fromkeys(graph.counts, empty)
    numbers = np.split(np.arange(len(asked)), np.cumsum([len(each) for each in rows.values()]))
    nodes |= rows
    seeds |= zip(rows, numbers)
    fresh = {name: (np.arange(len(each)), each, seeds[name]) for name, each in nodes.items()}
    batch = Batch(nodes, seeds, {name: [len(each)] for name, each in nodes.items()})
    for fanout in fanouts:
        drawn = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]()
        for number, relation in enumerate(graph.relations):
            at, targets, of_seed = fresh[relation.target]
            begins = relation.begins[targets]
            ends = np.searchsorted(relation.keys, targets << _CLOCK | asked[of_seed], side="right")
            row, edge = _draw(begins, ends, fanout, None if last else random)
            drawn[number] = at[row], relation.sources[edge], of_seed[row]
        batch.edges.append({})
        for name, count in graph.counts.items():
            mine = [number for number, relation in enumerate(graph.relations) if relation.source == name]
            if not mine:
                fresh[name] = (empty, empty, empty)
                batch.reached[name].append(len(nodes[name]))
                continue
            old = seeds[name] * count + nodes[name]
            order = np.argsort(old)
            codes = [drawn[number][2] * count + drawn[number][1] for number in mine]
            place = np.searchsorted(old[order], every := np.concatenate(codes))
            there = place < len(old)
            there[there] = old[order][place[there]] == every[there]
            new = np.unique(every[~there])
            positions = len(old) + np.searchsorted(new, every)
            positions[there] = order[place[there]]
            fresh[name] = (np.arange(len(old), len(old) + len(new)), new % count, new // count)
            nodes[name] = np.concatenate([nodes[name], new % count])
            seeds[name] = np.concatenate([seeds[name], new // count])
            batch.reached[name].append(len(nodes[name]))
            for number, part in zip(mine, np.split(positions, np.cumsum([len(each) for each in codes])[:-1])):
                batch.edges[-1][number] = part, drawn[number][0]
    return batch


def _draw(
    begins: np.ndarray, ends: np.ndarray, fanout: int, random: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray]:
    """Edges of some that begin and end somewhere, at most ``fanout`` of each, without replacement; or the last ones."""
    sizes = ends - begins
    few = np.flatnonzero((sizes <= fanout) & (sizes > 0))
    counts = sizes[few]
    rows = np.repeat(few, counts)
    edges = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[rows]
    many = np.flatnonzero(sizes > fanout)
    if not len(many):
        return rows, edges
    chosen = np.empty((len(many), fanout), np.int64)
    for step in range(fanout):  # Floyd's: the last that there is, where what was drawn has been taken
        top = sizes[many] - fanout + step
        if random is None:
            chosen[:, step] = top
            continue
        each = (random.random(len(many)) * (top + 1)).astype(np.int64)
        taken = (chosen[:, :step] == each[:, None]).any(1)
        chosen[:, step] = np.where(taken, top, each)
    return (
        np.concatenate([rows, np.repeat(many, fanout)]),
        np.concatenate([edges, (chosen + begins[many, None]).ravel()]),
    )


class TimeEncoding(nn.Module):
    """Sines and cosines of days, as of positions in texts, and a linear map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("rates", torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width)))
        self.linear = nn.Linear(width, width)

    def forward(self, days: Tensor) -> Tensor:
        angles = days[:, None] * self.rates
        return self.linear(torch.cat([angles.sin(), angles.cos()], 1))


class Layer(nn.Module):
    """SAGE with means: weights for each relation and for each table itself."""

    def __init__(self, graph: Graph, width: int, out: int) -> None:
        super().__init__()
        self.own = nn.ModuleDict({name: nn.Linear(width, out) for name in graph.counts})
        self.of_relation = nn.ModuleList([nn.Linear(width, out, bias=False) for _ in graph.relations])

    def forward(
        self, graph: Graph, x: dict[str, Tensor], edges: list[dict[int, tuple[Tensor, Tensor]]], counts: dict[str, int]
    ) -> dict[str, Tensor]:
        """Rows of the first ``counts`` nodes of each table."""
        out = {name: self.own[name](rows[: counts[name]]) for name, rows in x.items()}
        for number, relation in enumerate(graph.relations):
            ends = [hop[number] for hop in edges if number in hop and len(hop[number][0])]
            if not ends:
                continue
            src, dst = (torch.cat(each) for each in zip(*ends, strict=True))
            count = counts[relation.target]
            total = x[relation.target].new_zeros(count, x[relation.source].shape[1])
            total = total.index_add(0, dst, x[relation.source][src])
            degrees = torch.bincount(dst, minlength=count).clamp(min=1)
            out[relation.target] = out[relation.target] + self.of_relation[number](total / degrees[:, None])
        return out


class Peer(nn.Module):
    """As many layers as hops, behind the encoders of rows and times.

    Args:
        graph: whose tables and relations have weights.
        layers: how many.
        width: of all layers but the last.
        out: width of the last one.
        learnt: a table whose rows have vectors of their own.
    """

    def __init__(self, graph: Graph, layers: int, width: int, *, out: int = 1, learnt: str | None = None) -> None:
        super().__init__()
        counts = {learnt: graph.counts[learnt]} if learnt else {}
        self.learnt = nn.ModuleDict({name: nn.Embedding(count, width) for name, count in counts.items()})
        self.encoders = nn.ModuleDict({name: nn.Linear(x.shape[1], width) for name, x in graph.x.items()})
        self.ages = nn.ModuleDict({name: TimeEncoding(width) for name in graph.x})
        widths = [width] * layers + [out]
        self.layers = nn.ModuleList([Layer(graph, *pair) for pair in pairwise(widths)])
        self.norms = nn.ModuleList(
            [nn.ModuleDict({name: nn.LayerNorm(width) for name in graph.x}) for _ in range(layers - 1)]
        )

    def forward(self, graph: Graph, batch: Batch, asked: np.ndarray) -> dict[str, Tensor]:
        """Rows of the seeds, by their tables."""
        x = {}
        for name, nodes in batch.nodes.items():
            days = (asked[batch.seeds[name]] - graph.times[name][nodes]) / DAY
            picked = torch.from_numpy(nodes)
            x[name] = self.encoders[name](graph.x[name][picked])
            x[name] = x[name] + self.ages[name](torch.from_numpy(days.astype(np.float32)))
            if name in self.learnt:
                x[name] = x[name] + self.learnt[name](picked)
        edges = [
            {number: (torch.from_numpy(src), torch.from_numpy(dst)) for number, (src, dst) in hop.items()}
            for hop in batch.edges
        ]
        for number, layer in enumerate(self.layers):
            hops = len(self.layers) - number  # from here on, the others do not reach the seeds
            counts = {name: reached[hops - 1] for name, reached in batch.reached.items()}
            x = layer(graph, x, edges[:hops], counts)
            if hops > 1:
                x = {name: self.norms[number][name](rows).relu() for name, rows in x.items()}
        return x


def batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def trained(
    graph: Graph,
    questions: Questions,
    churned: np.ndarray,
    *,
    fanouts: Sequence[int],
    last: bool,
    width: int,
    epochs: int,
    batch_size: int,
    lr: float,
    most_train: int,
    most_eval: int,
    seed: int,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train, keep the epoch of the best area on validation questions, and say what it is on those for tests.

    Returns:
        ``auc_val``, ``auc_test``; and of each epoch ``epoch_seconds``, ``edges_per_second``, and ``sampler``, the
        edges per second of sampling alone.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    train, val, test = (random.permutation(np.flatnonzero(questions.split == split)) for split in range(3))
    val, test = val[:most_eval], test[:most_eval]
    model = Peer(graph, len(fanouts), width)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    labels = torch.from_numpy(churned.astype(np.float32))
    found: dict[str, Any] = {
        "auc_val": 0.0,
        "auc_test": 0.0,
        "epoch_seconds": [],
        "edges_per_second": [],
        "sampler": [],
    }

    def scores(rows: np.ndarray) -> np.ndarray:
        draws = np.random.default_rng(seed)
        model.eval()
        with torch.no_grad():
            parts = []
            for each in batches(rows, batch_size):
                asked = questions.asked[each]
                batch = sample(graph, {graph.table: each}, asked, fanouts, draws, last=last)
                parts.append(model(graph, batch, asked)[graph.table][:, 0].numpy())
        return np.concatenate(parts)

    for _ in range(epochs):
        begun, sampling, edges = time.perf_counter(), 0.0, 0
        model.train()
        for each in batches(random.permutation(train)[:most_train], batch_size):
            asked, before = questions.asked[each], time.perf_counter()
            batch = sample(graph, {graph.table: each}, asked, fanouts, random, last=last)
            sampling, edges = sampling + time.perf_counter() - before, edges + batch.num_edges
            optimizer.zero_grad()
            logits = model(graph, batch, asked)[graph.table][:, 0]
            loss = functional.binary_cross_entropy_with_logits(logits, labels[each])
            loss.backward()
            optimizer.step()
        found["epoch_seconds"].append(time.perf_counter() - begun)
        found["edges_per_second"].append(edges / found["epoch_seconds"][-1])
        found["sampler"].append(edges / sampling)
        of_val, of_test = (area(scores(rows), churned[rows]) for rows in (val, test))
        say(f"plain PyTorch, {len(fanouts)} layers, epoch {len(found['epoch_seconds'])}: {of_val:.4f} {of_test:.4f}")
        if of_val > found["auc_val"]:
            found |= {"auc_val": of_val, "auc_test": of_test}
    return found
