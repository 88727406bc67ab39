"""The first pass over a stream, and streams themselves."""

from __future__ import annotations

import numpy as np
import pytest
from array_stream import ArrayStream
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import InputError
from partita.core.partitioning import EdgeStream
from partita.partitioning import edge_streams
from partita.partitioning.edge_streams import RowStream, StoreStream, Watched
from partita.partitioning.stream_stats import survey
from partita.testing.graphs import small_random_store

edge_lists = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
)


def arrays(edges, dtype=np.int32):
    pairs = np.array(edges, dtype=dtype).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@given(edge_lists, st.sampled_from([np.int32, np.int64]))
def test_survey_counts_what_a_naive_count_counts(graph, dtype):
    num_nodes, edges = graph
    found = survey(Watched(ArrayStream(*arrays(edges, dtype), num_nodes)))
    proper = [(u, v) for u, v in edges if u != v]
    symmetric = sorted(proper) == sorted((v, u) for u, v in proper)
    ends = np.bincount(np.array(proper, dtype=int).reshape(-1), minlength=num_nodes)
    assert found.symmetric == symmetric
    assert found.degree.tolist() == (ends // 2 if symmetric else ends).tolist()
    assert (found.num_edges, found.num_loops) == (len(edges), len(edges) - len(proper))
    assert found.volume == found.degree.sum()


def test_a_node_that_does_not_exist_is_named():
    src, dst = np.array([0, 1, 7]), np.array([1, 2, 2])
    with pytest.raises(InputError, match=r"outside \[0, 3\)"):
        ArrayStream(src, dst, 3)

    class Wrong(ArrayStream):
        num_nodes = 3

    stream = Wrong(src, dst)
    stream.num_nodes = 3
    with pytest.raises(InputError, match="edge 2, counted from 0: the edge 7 -> 2 names a node that does not exist"):
        survey(stream)


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_store_streams_its_rows_in_order(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(edge_streams, "EDGES_AT_ONCE", at_once)
    store = small_random_store(tmp_path / "store", 40, 100)
    weight = np.arange(store.num_edges)
    stream = StoreStream(store, weight)
    assert isinstance(stream, EdgeStream)
    batches = [(e.src.copy(), e.dst.copy(), e.weight.copy()) for e in stream.edges("read")]
    src, dst, read = (np.concatenate(column) for column in zip(*batches))
    assert src.tolist() == store.indices.tolist()
    assert dst.tolist() == np.repeat(np.arange(40), store.in_degree()).tolist()
    assert read.tolist() == weight.tolist()
    seen = 0
    for rows in stream.rows("read"):
        assert rows.first == seen
        for i in range(len(rows.indptr) - 1):
            begin, end = rows.indptr[i] - rows.indptr[0], rows.indptr[i + 1] - rows.indptr[0]
            assert rows.src[begin:end].tolist() == store.neighbors(seen).tolist()
            assert rows.weight[begin:end].tolist() == weight[store.indptr[seen] : store.indptr[seen + 1]].tolist()
            seen += 1
    assert seen == 40


def test_a_prefix_holds_the_first_rows(tmp_path):
    store = small_random_store(tmp_path / "store", 40, 100)
    prefix = StoreStream(store).prefix(30)
    assert prefix.num_nodes == 40
    assert 30 <= prefix.num_edges < store.num_edges
    assert sum(len(e.src) for e in prefix.edges("read")) == prefix.num_edges


def test_a_raw_edge_list_has_no_rows():
    with pytest.raises(InputError, match="grouped by destination"):
        ArrayStream(np.array([0]), np.array([1])).rows("read")


class Changing(ArrayStream):
    """Gives other edges from the second pass on."""

    def edges(self, doing):
        yield from super().edges(doing)
        self._src, self._dst = self.then


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (([0, 1], [1, 2]), "3 edges before, 2 now"),
        (([0, 1, 2, 0], [1, 2, 0, 1]), "3 edges before, 4 now"),
        (([0, 1, 2], [1, 2, 1]), "with other ends"),
        (([1, 0, 2], [2, 1, 0]), "with other ends"),  # two edges swapped
        (([0, 2, 1], [1, 2, 0]), "with other ends"),  # two sources swapped
        (([1, 1, 2], [0, 2, 0]), "with other ends"),  # the ends of an edge swapped
    ],
)
def test_a_stream_that_changes_between_passes_is_noticed(then, message):
    stream = Changing(np.array([0, 1, 2]), np.array([1, 2, 0]), 3)
    stream.then = (np.array(then[0]), np.array(then[1]))
    watched = Watched(stream)
    survey(watched)
    with pytest.raises(InputError, match=message):
        list(watched.edges("again"))


def test_checksums_use_all_64_bits_over_many_batches(monkeypatch):
    monkeypatch.setattr(edge_streams, "EDGES_AT_ONCE", 7)
    src, dst = np.random.default_rng(0).integers(0, 1000, (2, 500), dtype=np.int32)
    watched = Watched(ArrayStream(src, dst))
    for _ in range(2):
        list(watched.edges("read"))
    place = [e * 0x9E3779B97F4A7C15 % 2**64 for e in range(500)]
    ends = zip(src.tolist(), dst.tolist(), place)
    assert watched.checksum == sum((u + p) * (v + (p ^ 0xBF58476D1CE4E5B9)) for u, v, p in ends) % 2**64


def test_the_same_stream_passes_again_and_again():
    watched = Watched(RowStream(np.array([0, 1, 3]), np.array([1, 0, 0])))
    for _ in range(3):
        assert sum(len(e.src) for e in watched.edges("read")) == 3
