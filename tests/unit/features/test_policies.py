"""Scores of nodes against naive ones, and the order that they give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.comm.threads import ThreadContext, ThreadGroups
from partita.features.policies import best_first, fit_by_bytes, in_degrees, pagerank, share_of_rows
from partita.sample.topology import as_tensor
from partita.testing.graphs import formula_store


@given(st.lists(st.integers(0, 5), max_size=40), st.one_of(st.none(), st.integers(0, 45)), st.booleans(), st.booleans())
def test_best_first_is_a_stable_sort(scores: list[int], count: int | None, floating: bool, limited: bool) -> None:
    allowed = [v % 3 != 1 for v in range(len(scores))]
    wanted = [
        v for v in sorted(range(len(scores)), key=lambda v: -scores[v]) if scores[v] and (allowed[v] or not limited)
    ]
    found = best_first(
        torch.tensor(scores, dtype=torch.float64 if floating else torch.int32),
        count,
        torch.tensor(allowed, dtype=torch.bool) if limited else None,
    )
    assert found.tolist() == wanted[:count]


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 6), max_size=12), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(-5, 120), st.booleans(),
)  # fmt: skip
def test_rows_of_all_kinds_are_taken_by_score_while_they_fit(kinds, room: int, floating: bool) -> None:
    dtype = torch.float64 if floating else torch.int32
    scores = [torch.tensor(sorted(found, reverse=True), dtype=dtype) for found, _ in kinds]
    left, wanted = room, [0] * len(kinds)
    for _, kind in sorted((-score, kind) for kind, (found, _) in enumerate(kinds) for score in found):
        if kinds[kind][1] <= left:
            left -= kinds[kind][1]
            wanted[kind] += 1
    assert fit_by_bytes(scores, [size for _, size in kinds], room) == wanted


def test_in_degrees_are_those_of_the_store(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=30)
    assert in_degrees(as_tensor(store.indptr)).tolist() == [len(store.neighbors(v)) for v in range(30)]


def test_shares_of_rows_cover_all_rows_and_have_about_as_many_edges() -> None:
    degrees = torch.tensor([0, 5, 0, 0, 40, 1, 1, 1, 1, 1, 0])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    for nodes in (range(11), range(2, 9), range(3, 3)):
        for size in (1, 2, 3, 20):
            shares = [share_of_rows(indptr, nodes, place, size) for place in range(size)]
            assert [v for share in shares for v in share] == list(nodes)
            edges = [int(indptr[share.stop] - indptr[share.start]) for share in shares]
            assert max(edges) <= sum(edges) / size + 40


@pytest.mark.parametrize(("workers", "hosts"), [(1, 1), (3, 1), (4, 2)])
def test_pagerank_is_the_dense_power_iteration(tmp_path, workers: int, hosts: int) -> None:
    """With several hosts, each holds the edges of half of the nodes."""
    n = 40
    store = formula_store(tmp_path / "g", num_nodes=n)
    restart = torch.zeros(n)
    restart[[3, 8, 21]] = torch.tensor([1.0, 1.0, 2.0])
    start = restart.double() / 4
    step = torch.zeros(n, n, dtype=torch.float64)
    for v in range(n):
        around = store.neighbors(v).tolist()
        step[v] = torch.bincount(torch.tensor(around), minlength=n).double() / len(around) if around else start
    wanted = start
    for _ in range(20):
        wanted = 0.85 * wanted @ step + 0.15 * start

    def work(context: ThreadContext) -> torch.Tensor:
        mesh, indptr = context.mesh, as_tensor(store.indptr)
        nodes = range(n * mesh.host // hosts, n * (mesh.host + 1) // hosts)
        first, last = int(indptr[nodes.start]), int(indptr[nodes.stop])
        rows = share_of_rows(indptr, nodes, mesh.worker, mesh.workers)
        indices = as_tensor(store.indices)[first:last]
        return pagerank(indptr, indices, first, rows, context.group(), restart)

    found = ThreadGroups(workers, hosts).run(work)
    for scores in found:
        torch.testing.assert_close(scores, wanted, rtol=1e-12, atol=1e-15)
        assert torch.equal(scores, found[0])
    # After 20 steps the rest is small, and somebody is visited who is no start.
    assert float((0.85 * wanted @ step + 0.15 * start - wanted).abs().sum()) < 0.04
    assert (wanted > 0).sum() > 3
