"""Verification finds any damage, and names the column."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from partita.core.errors import StoreError
from partita.graph import verify as verify_module
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.graph.writer import StoreWriter
from partita.testing.graphs import formula_store, small_random_store


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(verify_module, "_CHUNK", 16)


@pytest.mark.parametrize("names", [None, "numbers", "strings"])
def test_whole_stores_pass(tmp_path, names):
    store = formula_store(tmp_path / "a", weighted=True, names=names, shuffle_seed=3, num_parts=4, dtype=np.float16)
    lines = verify(store.path)
    assert len(lines) == len(store.metadata.columns)
    assert any(line.startswith("indices: <i4") for line in lines)
    verify(small_random_store(tmp_path / "b", 40, 0).path)
    verify(small_random_store(tmp_path / "c", 40, 500, undirected=True, deduplicate=True, weighted=True).path)


def test_a_flipped_bit_anywhere_is_found_by_name(tmp_path):
    store = formula_store(tmp_path / "store", weighted=True, names="strings", shuffle_seed=1)
    for name in store.metadata.columns:
        path = store.path / f"{name}.npy"
        content = path.read_bytes()
        for position in (130, len(content) // 2, len(content) - 1):
            changed = bytearray(content)
            changed[position] ^= 4
            path.write_bytes(changed)
            with pytest.raises(StoreError, match=f"column '{name}'"):
                verify(store.path)
        path.write_bytes(content)
    verify(store.path)


def test_all_damaged_columns_are_named_at_once(tmp_path):
    store = formula_store(tmp_path / "store")
    for name in ("x", "indices"):
        path = store.path / f"{name}.npy"
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(StoreError, match=r"column 'indices'.*column 'x'"):
        verify(store.path)


def remake(store: GraphStore, path, **changes):
    """The same store with other columns, and checksums that fit them: wrong from the beginning."""
    with StoreWriter(path) as writer:
        for name in store.metadata.columns.keys() | changes.keys():
            column = changes.get(name, store.column(name) if store.has(name) else None)
            if column is not None:
                writer.write(name, column)
        writer.finish(
            num_nodes=store.num_nodes, num_edges=store.num_edges, task=store.task, num_classes=store.num_classes
        )


def edited(array, position, value):
    array = np.array(array)
    array[position] = value
    return array


CASES = {
    "indptr": ("falls? at|offsets fall", lambda s: {"indptr": edited(s.indptr, 30, s.indptr[29] - 1)}),
    "part_offsets": ("offsets fall", lambda s: {"part_offsets": np.array([0, 40, 20, 60])}),
    "indices": ("entry 17 is 60, not the id", lambda s: {"indices": edited(s.indices, 17, 60)}),
    "indices ": ("entry 3 is -1, not the id", lambda s: {"indices": edited(s.indices, 3, -1)}),
    "indices  ": ("another number of self loops", lambda s: {"self_loops": edited(s.self_loops, 20, 9)}),
    "indices   ": ("no column self_loops", lambda s: {"self_loops": None}),
    "edge_weight": ("edge 40 has a weight that is not", lambda s: {"edge_weight": edited(s.edge_weight, 40, -1)}),
    "edge_weight ": ("edge 41 has a weight that is not", lambda s: {"edge_weight": edited(s.edge_weight, 41, np.nan)}),
    "edge_weight  ": (
        "only in one",
        lambda s: {"edge_weight_quantised": edited(s.edge_weight_quantised, np.flatnonzero(s.edge_weight)[9], 0)},
    ),
    "edge_weight_quantised": ("without weights", lambda s: {"edge_weight": None}),
    "x": ("row of node 33 .* not finite", lambda s: {"x": edited(s.x, (33, 2), np.inf)}),
    "y": (r"label of node 50 is outside \[-1, 2\]", lambda s: {"y": edited(s.y, 50, 3)}),
    "original_index": ("is not the index of a node", lambda s: {"original_index": edited(s.original_index, 5, 60)}),
    "original_index ": (
        "not a permutation",
        lambda s: {"original_index": edited(s.original_index, 5, s.original_index[6])},
    ),
    "split_val": ("is not a node", lambda s: {"split_val": edited(s.split("val"), 2, 60)}),
    "split_val ": ("ascending", lambda s: {"split_val": s.split("val")[::-1]}),
    "split_test": ("as well", lambda s: {"split_test": s.split("val")}),
    "name": ("two nodes have the name 7", lambda s: {"name": edited(np.arange(60), 8, 7)}),
    "name_offsets": ("offsets fall", lambda s: names_of(offsets=[0, 2, 1])),
    "name_offsets ": ("is not UTF-8", lambda s: names_of(text=b"\xff")),
    "name_offsets  ": ("begins inside a character", lambda s: names_of(text="é".encode())),
}


def names_of(offsets=(0, 1), text=b"x"):
    full = np.concatenate([offsets, np.full(61 - len(offsets), 120)]).astype(np.int64)
    return {"name_offsets": full, "name_bytes": np.frombuffer(text.ljust(120, b"a"), dtype=np.uint8)}


@pytest.mark.parametrize("case", CASES)
def test_content_against_the_rules_is_found(tmp_path, case):
    message, change = CASES[case]
    store = formula_store(tmp_path / "store", weighted=True, shuffle_seed=1)
    remake(store, tmp_path / "again")
    verify(tmp_path / "again")
    shutil.rmtree(tmp_path / "again")
    remake(store, tmp_path / "again", **change(store))
    with pytest.raises(StoreError, match=f"column '{case.strip()}': .*{message}"):
        verify(tmp_path / "again")


def test_multilabel_values(tmp_path):
    with StoreWriter(tmp_path / "store") as writer:
        writer.write("indptr", np.zeros(3, dtype=np.int64))
        writer.write("indices", np.zeros(0, dtype=np.int32))
        writer.write("y", np.array([[0, 1], [1, 2]], dtype=np.uint8))
        writer.finish(num_nodes=2, num_edges=0, task="multilabel", num_classes=2)
    with pytest.raises(StoreError, match="label of node 1 is outside"):
        verify(tmp_path / "store")
