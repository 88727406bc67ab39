"""What a model of links is judged by: ranks among all nodes, and scores beside those of pairs that are no edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.infer.analysis import Observer
from partita.infer.candidates import count_among, sampled
from partita.infer.known_answers import KnownAnswers, LinkQueries, known_answers
from partita.infer.layerwise import LayerwiseInference
from partita.infer.link_analysis import LinkOutcome
from partita.infer.ranking import BLOCK_BYTES, count_better
from partita.infer.scratch import Scratch
from partita.nn.decoders import Decoder, Side
from partita.tasks.links.edges import RELATION, SOURCE, TARGET
from partita.tasks.links.metrics import auc, average_precision, link_metrics, realistic_ranks
from partita.tasks.links.negatives import Uniform
from partita.tasks.metrics import Judged
from partita.tasks.task import EdgeTask

_SIDES: tuple[Side, ...] = ("tail", "head")
_TOGETHER = 1 << 16
"""Links that are judged together: the rows of their ends are in memory."""
_PAIRS_SEED = 0x50414952
"""Of the pairs that are no edges: the same for every run on a store."""
_TRIES = 16


@dataclass(frozen=True)
class NodeRows:
    """Rows of the model for this worker's nodes, and the way to those of others.

    Attributes:
        inference: that has computed them.
        rows: (m, d) of the nodes with the store ids ``first`` to ``first + m - 1``, in memory or mapped.
        first: store id of the first one.
    """

    inference: LayerwiseInference
    rows: Float[Tensor, "m d"]
    first: int

    @classmethod
    def of(cls, inference: LayerwiseInference) -> NodeRows:
        """Compute them. All workers call this."""
        first, last = inference.ranges.own
        context, rows, at = inference.context, None, 0
        for found in inference.run():
            if rows is None:
                scratch = Scratch(inference.memory_limit, None, context.group("workers"))
                rows = scratch.private("rows of nodes", last - first, found.output.shape[1], found.output.dtype)
            rows[at : at + len(found.ids)] = found.output
            at += len(found.ids)
        width = inference.model.widths[-1]
        return cls(inference, torch.empty(0, width, dtype=inference.dtype) if rows is None else rows, first)

    def at(self, nodes: Int64[Tensor, "n"]) -> Float[Tensor, "n d"]:
        """Rows of any nodes, the same ones on all workers. All workers call this."""
        if self.inference.context.mesh.size == 1:
            return self.rows.index_select(0, nodes - self.first)
        own = (nodes >= self.first) & (nodes < self.first + len(self.rows))
        found = self.rows.new_zeros(len(nodes), self.rows.shape[1])
        found[own] = self.rows[nodes[own] - self.first]
        self.inference.context.group("all").sum_([found], kind="forward")  # zeros but for one worker
        return found


def judge_links(inference: LayerwiseInference, task: EdgeTask, split: str, observer: Observer | None = None) -> Judged:
    """Metrics of a model on the held-out edges of a split.

    ``mrr`` and ``hits@k`` are of both ends of every edge, ranked among all nodes of their type, or among some that are
    sampled, but for those that make another edge of the graph or of a split (filtered). ``auc`` and ``ap`` are of the
    edges beside as many pairs of nodes of these types, drawn alike, that are none; where no such pairs were found, they
    are left out.

    Collective: every worker compares with the nodes that it computes.

    Args:
        inference: over the store of the task.
        task: what the model has learned.
        split: its name.
        observer: is given what was found, on the first worker.

    Raises:
        StoreError: the store has no such split.
    """
    links, store = task.seeds(split), task.store
    table = NodeRows.of(inference)
    ranks, positive, negative = list[Float64[np.ndarray, "n"]](), list[np.ndarray](), list[np.ndarray]()
    with torch.no_grad():
        for some in links.split(_TOGETHER):
            ranks.append(_ranks(table, task, some))
            positive.append(_scores(table, task.decoder, some))
            negative.append(_scores(table, task.decoder, no_edges(store, some, split, both_ways=task.undirected)))
    none = np.empty(0)
    found = LinkOutcome(
        split, links.numpy(), np.concatenate([np.empty((2, 0)), *ranks], axis=1),
        np.concatenate([none, *positive]), np.concatenate([none, *negative]), task.eval_negatives,
    )  # fmt: skip
    if observer is not None and inference.context.mesh.rank == 0:
        observer(found)
    metrics = link_metrics(found.ranks.ravel())
    if len(found.scores) and len(found.others):
        metrics["auc"] = auc(found.scores, found.others)
        metrics["ap"] = average_precision(found.scores, found.others)
    return Judged(metrics, None, found.of_relations(store))


def _relations(links: Int64[Tensor, "n ends"]) -> Int64[Tensor, "n"]:
    return links[:, RELATION] if links.shape[1] > RELATION else torch.zeros_like(links[:, SOURCE])


def _scores(table: NodeRows, decoder: Decoder, links: Int64[Tensor, "n ends"]) -> Float[np.ndarray, "n"]:
    heads, tails = table.at(links[:, SOURCE]), table.at(links[:, TARGET])
    return decoder(heads, tails, _relations(links)).double().numpy()


def _ranks(table: NodeRows, task: EdgeTask, links: Int64[Tensor, "n ends"]) -> Float64[np.ndarray, "2 n"]:
    """Ranks of the tails of links, and of their heads."""
    decoder, store = task.decoder, task.store
    heads, tails = table.at(links[:, SOURCE]), table.at(links[:, TARGET])
    found, group = [], table.inference.context.group("all")
    for side in _SIDES:
        true = decoder.toward(side, heads, tails, _relations(links))
        queries = LinkQueries.of(store, links, side)
        known = known_answers(store, queries, both_ways=task.undirected)
        asked = decoder, queries, heads if side == "tail" else tails, true, table.rows, table.first
        limit = min(BLOCK_BYTES, max(1 << 20, table.inference.memory_limit // 4))
        if task.eval_negatives:
            candidates = sampled(store, queries, known, task.eval_negatives, limit)
            counts = count_among(*asked, candidates, memory_limit=limit)
        else:
            counts = count_better(*asked, store.node_types, known=known, memory_limit=limit)
        group.sum_([counts], kind="metadata")
        found.append(realistic_ranks(*counts))
    return np.stack(found)


def no_edges(
    store: GraphStore, links: Int64[Tensor, "n ends"], split: str, *, both_ways: bool = False
) -> Int64[Tensor, "m ends"]:
    """As many pairs of nodes as links, of the same types and relations, that are no edges: neither of the graph, nor
    held out. They are the same for every run; where none was found in a few tries, there is none.
    """
    key = StepKey(_PAIRS_SEED, 0, sum(split.encode()))
    drawn = Uniform.of(store, _TRIES)
    heads, tails = drawn.candidates(links, key, "head"), drawn.candidates(links, key, "tail")
    found, missing = links.clone(), torch.arange(len(links))
    kept = torch.zeros(len(links), dtype=torch.bool)
    for heads_now, tails_now in zip(heads.unbind(1), tails.unbind(1)):
        if not len(missing):
            break
        found[missing, SOURCE], found[missing, TARGET] = heads_now[missing], tails_now[missing]
        free = ~are_edges(store, found[missing], both_ways=both_ways) & (
            found[missing, SOURCE] != found[missing, TARGET]
        )
        kept[missing[free]] = True
        missing = missing[~free]
    return found[kept]


def are_edges(store: GraphStore, pairs: Int64[Tensor, "m ends"], *, both_ways: bool = False) -> Bool[Tensor, "m"]:
    """Which pairs are edges of the graph or held out; with ``both_ways`` in one direction or the other."""
    queries = LinkQueries.of(store, pairs, "tail")
    known: KnownAnswers = known_answers(store, queries, both_ways=both_ways)
    wanted = known.question * known.num_nodes + queries.true
    return torch.from_numpy(np.isin(wanted, known.pairs))


__all__ = ["NodeRows", "are_edges", "judge_links", "no_edges"]
