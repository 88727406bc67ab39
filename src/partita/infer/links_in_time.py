"""What a model of links is judged by where edges have times: ranks among the nodes that are there when it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from partita.core import progress
from partita.core.errors import ConfigError
from partita.graph.store import GraphStore
from partita.infer.analysis import Observer
from partita.infer.candidates import count_among, sampled
from partita.infer.known_answers import KnownAnswers, LinkQueries
from partita.infer.link_analysis import LinkOutcome
from partita.infer.ranking import BLOCK_BYTES
from partita.infer.rows_in_time import RowsInTime
from partita.infer.temporal import TemporalInference
from partita.nn.decoders import Side
from partita.tasks.links.edges import COLUMN, RELATION, SOURCE, TARGET, TIME
from partita.tasks.links.metrics import MAP, count_compared, link_metrics, mean_average_precision, realistic_ranks
from partita.tasks.links.task import LinkTask
from partita.tasks.metrics import Judged
from partita.tasks.task import EdgeTask

_TOGETHER = 1 << 16
"""Links that are judged together: the rows of their ends are in memory."""
_PAIR_BYTES = 64
"""Of memory for a sampled candidate, besides its row."""


def judge_links_in_time(
    inference: TemporalInference, task: LinkTask, split: str, observer: Observer | None = None
) -> Judged:
    """Metrics of a model on the edges that are asked about in the time of a split.

    An end of an edge is ranked among the nodes of its type that are there at the time, or among some that are sampled
    of them, but for those that are other answers to the same question (filtered): to the same source, relation and
    time, where the destination is asked for. These are the ends that the run replaces to make negatives. ``mrr`` and
    ``hits@k`` are of all ranks, ``map@10`` of the questions for destinations, see
    :func:`~partita.tasks.links.metrics.mean_average_precision`.

    The rows of all nodes that are there are computed once for every distinct time, unless candidates are sampled.
    Collective: every worker computes a piece of them.

    Args:
        inference: over the store of the task.
        task: what the model has learned.
        split: its name.
        observer: is given what was found, on the first worker.

    Raises:
        StoreError: no edge is asked about in the time of the split.
    """
    links = task.seeds(split).numpy()
    limit = min(inference.context.group("all").gather(inference.memory_limit))  # all workers must cut alike
    judge = _Judge(inference, task, links, min(BLOCK_BYTES, max(1 << 20, limit // 4)))
    ranks = judge.among_sampled() if task.eval_negatives else judge.among_all()
    none = np.empty(0)
    found = LinkOutcome(split, links, ranks, none, none, task.eval_negatives, task.sides)
    if observer is not None and inference.context.mesh.rank == 0:
        observer(found)
    metrics = link_metrics(ranks.ravel())
    if "tail" in task.sides and len(links):
        metrics[MAP] = mean_average_precision(ranks[task.sides.index("tail")], questions(links, "tail"))
    return Judged(metrics, None, found.of_relations(task.store))


def in_time(task: EdgeTask) -> LinkTask:
    """A task whose edges are asked about at times.

    Raises:
        ConfigError: they are not.
    """
    if isinstance(task, LinkTask) and task.in_time is not None:
        return task
    raise ConfigError(
        "edges of a task of one's own are asked about at no time, and only neighbors of a time are sampled",
        where="task",
        fix="Derive it from partita.tasks.links.task.LinkTask, or set temporal_strategy to none",
    )


def questions(links: Int64[np.ndarray, "n 4"], side: Side) -> Int64[np.ndarray, "n"]:
    """Numbers of what is asked: one other end, one relation and one time."""
    asked = np.delete(links, COLUMN[side], axis=1)
    return np.unique(asked, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Ranks links.

    Attributes:
        inference, task: see :func:`judge_links_in_time`.
        links: of the split.
        limit: bytes for a block.
    """

    inference: TemporalInference
    task: LinkTask
    links: Int64[np.ndarray, "n 4"]
    limit: int

    def among_all(self) -> Float64[np.ndarray, "S n"]:
        """Among all nodes that are there."""
        ranks = np.empty((len(self.task.sides), len(self.links)))
        group = self.inference.context.group("all")
        with progress.task("rank links", total=len(self.links), unit="links") as task:
            for which in of_each_time(self.links[:, TIME]):
                links = self.links[which]
                table = self._everyone(links)
                known = [_known(self.task, links, side) for side in self.task.sides]
                for begin in range(0, len(links), _TOGETHER):
                    some = slice(begin, begin + _TOGETHER)
                    for number, side in enumerate(self.task.sides):
                        counts = self._counts(table, links[some], side, _of_some(known[number], some))
                        group.sum_([counts], kind="metadata")
                        ranks[number, which[some]] = realistic_ranks(*counts)
                task.advance(len(links))
        return ranks

    def _everyone(self, links: Int64[np.ndarray, "n 4"]) -> RowsInTime:
        """Rows of all candidates for ends of links, of one time, and of the other ends."""
        time, in_time, store = int(links[0, TIME]), self.task.in_time, self.task.store
        assert in_time is not None
        kinds = {
            kind for side in self.task.sides for kind in np.unique(_queries(store, links, side).types).tolist()
        }  # fmt: skip
        there = [in_time.nodes.at(kind, time) for kind in sorted(kinds)]
        nodes = np.unique(np.concatenate([*there, links[:, SOURCE], links[:, TARGET]]))
        return RowsInTime.of(self.inference, nodes, np.full(len(nodes), time))

    @torch.no_grad()
    def _counts(
        self, table: RowsInTime, links: Int64[np.ndarray, "n 4"], side: Side, known: KnownAnswers
    ) -> Int64[Tensor, "2 n"]:
        """How many of this worker's candidates score higher than the true ends, and how many the same."""
        store, decoder, queries = self.task.store, self.task.decoder, _queries(self.task.store, links, side)
        heads, tails = (table.at(links[:, end], links[:, TIME]) for end in (SOURCE, TARGET))
        true = decoder.toward(side, heads, tails, torch.from_numpy(queries.relations))
        counts = torch.zeros((2, len(links)), dtype=torch.int64)
        given = heads if side == "tail" else tails
        for some, ids, scores in table.blocks(decoder, queries, given, store, self.limit):
            places, answers = known.within(some.numpy(), int(ids[0]), int(ids[-1]) + 1)
            at = np.searchsorted(ids, answers)
            here = ids[at] == answers
            scores[torch.from_numpy(places[here]), torch.from_numpy(at[here])] = -torch.inf
            counts[:, some] += count_compared(true[some], scores)
        return counts

    def among_sampled(self) -> Float64[np.ndarray, "S n"]:
        """Among sampled ones of the nodes that are there."""
        task, inference = self.task, self.inference
        assert task.in_time is not None
        ranks = np.empty((len(task.sides), len(self.links)))
        order = np.argsort(self.links[:, TIME], kind="stable")
        a_link = (task.eval_negatives + 2) * (_PAIR_BYTES + inference.dtype.itemsize * inference.model.widths[-1])
        together = max(1, self.limit // a_link)
        for number, side in enumerate(task.sides):
            known = _known(task, self.links, side)
            for which in np.split(order, range(together, len(order), together)) if len(order) else ():
                links = self.links[which]
                queries, times = _queries(task.store, links, side), links[:, TIME]
                mine = KnownAnswers(known.num_nodes, known.question[which], known.pairs)
                pieces = [*sampled(
                    task.store, queries, mine, task.eval_negatives, 1 << 62, there=task.in_time.nodes, times=times
                )]  # fmt: skip
                places, nodes = (np.concatenate(each) for each in zip(*pieces, strict=True))
                ranks[number, which] = self._ranks_among(links, side, places, nodes)
        return ranks

    @torch.no_grad()
    def _ranks_among(
        self,
        links: Int64[np.ndarray, "n 4"],
        side: Side,
        places: Int64[np.ndarray, "m"],
        nodes: Int64[np.ndarray, "m"],
    ) -> Float64[np.ndarray, "n"]:
        """Ranks of ends of links among candidates, of each of which it is said for which link."""
        times, decoder = links[:, TIME], self.task.decoder
        queries = _queries(self.task.store, links, side)
        all_nodes = np.concatenate([links[:, SOURCE], links[:, TARGET], nodes])
        table = RowsInTime.of(self.inference, all_nodes, np.concatenate([times, times, times[places]]))
        heads, tails = (table.at(links[:, end], times) for end in (SOURCE, TARGET))
        true = decoder.toward(side, heads, tails, torch.from_numpy(queries.relations))
        candidates = iter([(places, table.places(nodes, times[places]))])
        counts = count_among(
            decoder, queries, heads if side == "tail" else tails, true, table.rows, table.first, candidates,
            memory_limit=self.limit,
        )  # fmt: skip
        self.inference.context.group("all").sum_([counts], kind="metadata")
        return realistic_ranks(*counts)


def _queries(store: GraphStore, links: Int64[np.ndarray, "n 4"], side: Side) -> LinkQueries:
    return LinkQueries.of(store, torch.from_numpy(links), side)


def of_each_time(times: Int64[np.ndarray, "n"]) -> Iterator[Int64[np.ndarray, "k"]]:
    """Places of equal times, the earliest first."""
    order = np.argsort(times, kind="stable")
    cuts = np.flatnonzero(np.diff(times[order])) + 1
    return iter(np.split(order, cuts) if len(order) else [])


def _known(task: LinkTask, links: Int64[np.ndarray, "n 4"], side: Side) -> KnownAnswers:
    """All answers to the questions of links, of which these are given: in an undirected graph in both directions."""
    num_nodes, given = task.store.num_nodes, np.delete(links, COLUMN[side], axis=1)
    asked, question = np.unique(given, axis=0, return_inverse=True)
    question = question.reshape(-1)
    pairs = [question * num_nodes + links[:, COLUMN[side]]]
    if task.undirected:
        turned = links[:, [TARGET, SOURCE, RELATION, TIME]]
        hit, at = _rows_among(asked, np.delete(turned, COLUMN[side], axis=1))
        pairs.append(at[hit] * num_nodes + turned[hit, COLUMN[side]])
    return KnownAnswers(num_nodes, question, np.unique(np.concatenate(pairs)))


def _rows_among(
    rows: Int64[np.ndarray, "n k"], wanted: Int64[np.ndarray, "m k"]
) -> tuple[Bool[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
    """Which of the wanted rows are there, and where; rows are distinct."""
    both = np.unique(np.concatenate([rows, wanted]), axis=0, return_inverse=True)[1].reshape(-1)
    place = np.full(int(both.max(initial=-1)) + 1, -1)
    place[both[: len(rows)]] = np.arange(len(rows))
    found = place[both[len(rows) :]]
    return found >= 0, found


def _of_some(known: KnownAnswers, some: slice) -> KnownAnswers:
    """The same for some of the queries."""
    return KnownAnswers(known.num_nodes, known.question[some], known.pairs)


__all__ = ["in_time", "judge_links_in_time", "of_each_time", "questions"]
