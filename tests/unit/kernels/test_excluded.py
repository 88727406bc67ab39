"""Edges that are left out of rows: every kernel draws what it draws from the graph without them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from partita import kernels
from partita.core.keys import fold
from partita.kernels.excluded import stepped
from partita.kernels.reference.draws import NEVER
from partita.kernels.reference.shared_draws import SharedKey

KEY = 0x0FEDCBA987654321
RELATIONS = 3


@dataclass
class Case:
    """A store of a random range of nodes' edges, and the same without some of its edges."""

    indptr: Tensor
    columns: dict[str, Tensor]
    excluded: Tensor
    first: int
    dst: Tensor

    @classmethod
    def of(cls, seed: int, share: float, longest: int, dtype: torch.dtype) -> Case:
        random = np.random.default_rng(seed)
        nodes = int(random.integers(1, 20))
        degrees = random.integers(0, longest + 1, nodes) * (random.random(nodes) < 0.8)
        indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        row, edges = np.repeat(np.arange(nodes), degrees), int(indptr[-1])
        kinds = random.integers(0, RELATIONS, edges)
        kinds = kinds[np.lexsort((kinds, row))]
        weights = (random.integers(0, 2**32, edges) * (random.random(edges) < 0.7)).astype(np.uint32)
        low, high = sorted(random.integers(0, nodes + 1, 2).tolist()) if random.random() < 0.5 else (0, nodes)
        first, last = int(indptr[low]), int(indptr[high])
        columns = {
            "indices": torch.from_numpy(random.integers(0, nodes, edges)).to(dtype)[first:last],
            "kinds": torch.from_numpy(kinds.astype(np.uint8))[first:last],
            "weights": torch.from_numpy(weights)[first:last],
        }
        lost = np.flatnonzero(random.random(last - first) < share) + first
        dst = torch.from_numpy(random.permutation(np.arange(low, high)))
        return cls(indptr, columns, torch.from_numpy(lost), first, dst)

    def without(self) -> Case:
        """The store that lacks the edges."""
        kept = torch.ones(len(self.columns["indices"]), dtype=torch.bool)
        kept[self.excluded - self.first] = False
        before = torch.searchsorted(self.excluded, self.indptr)
        columns = {  # PyTorch 2.6 cannot index uint32
            name: torch.from_numpy(column.numpy()[kept.numpy()]) for name, column in self.columns.items()
        }
        return Case(self.indptr - before, columns, self.excluded[:0], self.first, self.dst)

    def draws(self, weighted: bool, replace: bool, fanout: int) -> list[Any]:
        """All that is drawn from it; positions counted as if nothing was left out."""
        edges = {"weights": self.columns["weights"] if weighted else None, "first_edge": self.first}
        edges["excluded"] = self.excluded
        rows, dst, original = (self.indptr, self.columns["indices"]), self.dst, self.dst * 7 + 3
        typed, fanouts = (*rows, self.columns["kinds"]), (fanout, 0 if fanout == 2 else -1, 1)
        last, moves = self.first + len(rows[1]), {name: edges[name] for name in edges}
        draws, _ = kernels.walk_draws(original, KEY, walks=1, step=0)
        more = {**edges, "replace": replace}
        found: list[Any] = [
            kernels.sample_neighbors(*rows, dst, original, KEY, fanout, positions=True, **more),
            kernels.sample_relations(*typed, dst, original, KEY, fanouts, positions=True, **more),
            kernels.walk_step(*rows, dst, draws, **moves),
            *(
                kernels.relation_step(*typed, dst, draws, number, num_relations=RELATIONS, **moves)
                for number in range(RELATIONS)
            ),
        ]
        whole = self.first == 0 and last == int(self.indptr[-1])
        if whole:
            steps = {"walks": 3, "length": 4, "restart": 0.2, "weights": edges["weights"], "excluded": self.excluded}
            found.append(kernels.random_walks(*rows, dst, original, KEY, **steps))
        wanted = abs(fanout) + 1
        times = kernels.arrival_times(self.indptr, dst, original, KEY, wanted, last_edge=last, **more)
        by_kind = kernels.relation_arrival_times(
            self.indptr, typed[2], dst, original, KEY, (wanted, 0, 2), **more
        )  # fmt: skip
        found += [times, by_kind]
        for time in (int(times[-1]), NEVER):
            found.append(kernels.pick_arrivals(*rows, dst, original, KEY, time, positions=True, **more))
        befores = (int(by_kind[wanted - 1]), 0, int(by_kind[-1]))
        found.append(
            kernels.pick_relation_arrivals(
                *typed, dst, original, KEY, befores, positions=True, degrees=True, **more
            )
        )  # fmt: skip
        return found

    def plain(self, found: Any) -> Any:
        """A result as lists, its positions those in the store that lacks the edges."""
        if isinstance(found, Tensor):
            return found.tolist()
        at = found.positions - torch.searchsorted(self.excluded, found.positions)
        assert not torch.isin(found.positions, self.excluded).any()
        columns = [found.indptr, found.indices, at, found.edge_type, found.weights, found.relation_degree]
        return [None if column is None else column.tolist() for column in columns]


@pytest.mark.parametrize("implementation", ["cpu", "reference"])
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([3, 12, 60]),
    st.sampled_from([torch.int32, torch.int64]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 5, 34]),
)
def test_draws_are_those_of_the_graph_without_them(
    implementation, seed, share, longest, dtype, weighted, replace, fanout
):
    case = Case.of(seed, share, longest, dtype)
    with kernels.use(implementation):
        found = case.draws(weighted, replace, fanout)
    with kernels.use("reference"):
        smaller = case.without()
        wanted = smaller.draws(weighted, replace, fanout)
    assert [case.plain(each) for each in found] == [smaller.plain(each) for each in wanted]


def test_long_rows_and_many_edges(both) -> None:
    """Rows whose walk through the excluded ones, and whose set of picks, are those for many."""
    random = np.random.default_rng(1)
    indptr = torch.tensor([0, 5000, 5000, 100_000, 100_300])
    indices = torch.from_numpy(random.integers(0, 4, 100_300).astype(np.int32))
    excluded = torch.from_numpy(np.flatnonzero(random.random(100_300) < 0.1))
    dst = torch.arange(4)
    for fanout in (5, 40, -1):
        found, wanted = both(
            lambda fanout=fanout: kernels.sample_neighbors(
                indptr, indices, dst, dst, KEY, fanout, positions=True, excluded=excluded
            )
        )
        assert torch.equal(found.positions, wanted.positions)
        assert not torch.isin(found.positions, excluded).any()
        assert torch.equal(found.indices, indices[found.positions])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.5]), st.sampled_from([1, 2, 5, 400]), st.integers(1, 3),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_what_was_found_in_one_layer_serves_the_next(seed, share, longest, threads, weighted, shared):
    """Layers of any rows, of some, of all and of repeated ones; in which others look like those with excluded edges."""
    random = np.random.default_rng(seed)
    nodes = 20_000
    degrees = random.integers(0, longest + 1, nodes) if seed % 2 else np.full(nodes, min(longest, 16))
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    edges = int(indptr[-1])
    indices = torch.from_numpy(random.integers(0, nodes, edges))
    weights = torch.from_numpy(random.integers(0, 9, edges).astype(np.uint32)) if weighted else None
    positions = np.sort(random.choice(edges, min(edges, int(share * 24_000)), replace=False))
    excluded = torch.from_numpy(positions)
    rows = np.unique(np.searchsorted(indptr.numpy(), positions, side="right") - 1)
    some, others = random.permutation(rows), random.permutation(nodes)[: nodes // 2]
    layers = [some[: len(some) // 2], some, np.concatenate([some[::2], others]), np.repeat(others, 2), some[::-1]]
    draw = _draw_shared if shared else _draw

    def drawn(layer: np.ndarray, excluded: Tensor, indptr: Tensor = indptr) -> list[list[int]]:
        return draw(indptr, indices, weights, torch.from_numpy(layer.copy()), excluded)

    kernels.set_threads(threads)
    try:
        for layer in layers:
            assert drawn(layer, excluded) == drawn(layer, excluded.clone())
        whole, pairs = torch.tensor([0, edges]), indptr[::2].contiguous()  # other rows of the same edges
        assert drawn(np.array([0]), excluded, whole) == drawn(np.array([0]), excluded.clone(), whole)
        for layer in (others[others < nodes // 2], layers[2]):
            layer = layer[layer < nodes // 2]
            assert drawn(layer, excluded, pairs) == drawn(layer, excluded.clone(), pairs)
        assert drawn(layers[2], excluded) == drawn(layers[2], excluded.clone())
    finally:
        kernels.set_threads(None)


def _draw(indptr: Tensor, indices: Tensor, weights: Tensor | None, dst: Tensor, excluded: Tensor) -> list[list[int]]:
    found = kernels.sample_neighbors(
        indptr, indices, dst, dst, KEY, 3, weights=weights, positions=True, excluded=excluded
    )
    assert not torch.isin(found.positions, excluded).any()
    return [found.indptr.tolist(), found.positions.tolist()]


def _draw_shared(
    indptr: Tensor, indices: Tensor, weights: Tensor | None, dst: Tensor, excluded: Tensor
) -> list[list[int]]:
    found = kernels.sample_shared(
        indptr, indices, dst, None, SharedKey(KEY), (3,), weights=weights, positions=True, excluded=excluded,
        num_nodes=20_000,
    )  # fmt: skip
    assert not torch.isin(found.positions, excluded).any()
    return [found.indptr.tolist(), found.positions.tolist()]


@pytest.mark.parametrize("weights", [None, [3, 0, 1, 7, 2, 5]])
@pytest.mark.parametrize("replace", [False, True])
def test_each_of_the_others_is_drawn_as_often_as_it_should(weights, replace) -> None:
    """Brute force: many nodes with six edges, of which the second and the fifth are left out, all with other keys."""
    trials, degree, fanout, lost = 30_000, 6, 2, (1, 4)
    nodes = torch.arange(trials)
    indptr, indices = (
        torch.arange(0, trials * degree + 1, degree),
        torch.arange(degree, dtype=torch.int32).repeat(trials),
    )
    excluded = (nodes[:, None] * degree + torch.tensor(lost)).flatten()
    column = None if weights is None else torch.tensor(weights, dtype=torch.uint32).repeat(trials)
    found = kernels.sample_neighbors(
        indptr, indices, nodes, nodes, KEY, fanout, weights=column, replace=replace, excluded=excluded
    )
    picks = found.indices.reshape(trials, fanout).sort(dim=1).values
    left = [slot for slot in range(degree) if slot not in lost]
    share = {slot: 1.0 if weights is None else float(weights[slot]) for slot in left}
    total = sum(share.values())
    expected = {}
    for a, b in combinations(left, 2):
        if replace:
            expected[a, b] = 2 * share[a] * share[b] / total**2
        else:
            expected[a, b] = sum(share[x] / total * share[y] / (total - share[x]) for x, y in ((a, b), (b, a)))
    if replace:
        expected |= {(a, a): (share[a] / total) ** 2 for a in left}
    observed = {pair: int(((picks[:, 0] == pair[0]) & (picks[:, 1] == pair[1])).sum()) for pair in expected}
    assert sum(observed.values()) == trials  # so none that is left out
    assert stats.chisquare(list(observed.values()), [trials * p for p in expected.values()]).pvalue > 1e-4


def test_exactly_all_others_where_the_fanout_is_large() -> None:
    indptr, indices = torch.tensor([0, 6, 8]), torch.tensor([5, 4, 3, 2, 1, 0, 7, 7], dtype=torch.int32) % 2
    for key in range(50):
        for fanout in (4, 9, -1):
            found = kernels.sample_neighbors(
                indptr, indices, torch.tensor([1, 0]), torch.tensor([1, 0]), fold(KEY, key), fanout,
                positions=True, excluded=torch.tensor([0, 3, 6, 7]),
            )  # fmt: skip
            assert found.positions.tolist() == [1, 2, 4, 5]
            assert found.indptr.tolist() == [0, 0, 4]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([1, 3, 60]), st.sampled_from([3, 700]))
def test_edges_between_pairs_are_found(both, seed, with_kinds, pairs, longest):
    case = Case.of(seed, 0.0, longest, torch.int32)
    random = np.random.default_rng(seed + 1)
    nodes = len(case.indptr) - 1
    if not len(case.dst):
        return
    dst = torch.from_numpy(random.choice(case.dst.numpy()[: random.integers(1, 4)], pairs))
    src = torch.from_numpy(random.integers(0, nodes, pairs))
    kinds = torch.from_numpy(random.integers(0, RELATIONS, pairs)) if with_kinds else None
    found, wanted = both(
        lambda: kernels.find_edges(
            case.indptr, case.columns["indices"], case.columns["kinds"], dst, src, kinds, first_edge=case.first
        )
    )
    assert torch.equal(found, wanted)
    row = torch.repeat_interleave(torch.arange(nodes), case.indptr.diff())[case.first :][: len(case.columns["indices"])]
    edges = list(zip(row.tolist(), case.columns["indices"].tolist(), case.columns["kinds"].tolist()))
    if kinds is None:
        meant = set(zip(dst.tolist(), src.tolist()))
        assert found.tolist() == [case.first + e for e, (d, s, _) in enumerate(edges) if (d, s) in meant]
    else:
        triples = set(zip(dst.tolist(), src.tolist(), kinds.tolist()))
        assert found.tolist() == [case.first + e for e, each in enumerate(edges) if each in triples]


def test_ids_that_are_no_nodes_are_refused() -> None:
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([1, 0], dtype=torch.int32)
    with pytest.raises(IndexError, match="src"):
        kernels.find_edges(indptr, indices, None, torch.tensor([0]), torch.tensor([2]))
    with pytest.raises(IndexError, match="dst"):
        kernels.find_edges(indptr, indices, None, torch.tensor([-1]), torch.tensor([0]))
    with pytest.raises(ValueError, match="2 destinations with 1 sources"):
        kernels.find_edges(indptr, indices, None, torch.tensor([0, 0]), torch.tensor([1]))


def test_positions_are_stepped_over() -> None:
    excluded = torch.tensor([2, 3, 7, 11])
    assert stepped(excluded, torch.tensor([5, 6, 8, 9]), torch.tensor([2, 2, 2, 2])).tolist() == [5, 6, 9, 10]
    assert stepped(excluded, torch.tensor([1, 2, 3]), torch.tensor([0, 0, 0])).tolist() == [1, 4, 5]
