"""Columns that are not what was written: noticed when a store is opened, and never copied."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import partita
from partita.core.errors import StoreError
from partita.graph import soundness
from partita.graph.export import export
from partita.graph.store import GraphStore
from partita.graph.verify import verify
from partita.testing.graphs import formula_store, small_random_store


def flip(file: Path, position: int, *, noticed: bool) -> None:
    """Change one bit; ``noticed``: the file then has the time of now, as after any writing."""
    times = file.stat()
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)
    if not noticed:
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_column_that_was_written_to_is_read_when_the_store_is_opened(tmp_path) -> None:
    store = formula_store(tmp_path / "store", weighted=True, names="strings", shuffle_seed=1, num_parts=2)
    for name in store.metadata.columns:
        file = store.path / f"{name}.npy"
        for position in (128, -1):
            flip(file, position, noticed=True)
            with pytest.raises(StoreError, match=rf"column '{name}'(: the content does not match| is damaged).*ingest"):
                GraphStore.open(store.path)
            flip(file, position, noticed=True)
            GraphStore.open(store.path)


def test_what_was_found_sound_is_not_read_again(tmp_path, monkeypatch) -> None:
    formula_store(tmp_path / "store")
    time.sleep(0.01)
    shutil.copytree(tmp_path / "store", tmp_path / "copy", copy_function=shutil.copyfile)
    read = list[str]()
    checksum = soundness.file_checksum

    def noted(path: Path, *more: object) -> str:
        read.append(path.stem)
        return checksum(path, *more)

    monkeypatch.setattr(soundness, "file_checksum", noted)
    (tmp_path / "copy" / "x.npy").touch()
    GraphStore.open(tmp_path / "copy")
    assert "x" in read
    read.clear()
    GraphStore.open(tmp_path / "copy")
    GraphStore.open(tmp_path / "store")
    assert read == []


COPIES = {
    "partition": lambda path, out: partita.partition(path, out, parts=2, algorithm="random"),
    "split": lambda path, out: partita.split_links(path, out),
    "shard": lambda path, out: partita.shard(path, out, host=0, hosts=2),
    "export": lambda path, out: partita.export(path, out.with_suffix(".npz")),
    "presample": lambda path, out: partita.presample(path, fanout=(2, 2), epochs=1),
}


@pytest.mark.parametrize("verb", COPIES)
def test_damage_that_nobody_noticed_is_not_copied(tmp_path, verb) -> None:
    """The file has the time that it had: a disk that lies."""
    made = small_random_store(tmp_path / "whole", 60, 400, num_features=3, weighted=True)
    partita.partition(made, tmp_path / "store", parts=2, algorithm="random")
    store = GraphStore.open(tmp_path / "store")
    before = {path.name for path in tmp_path.iterdir()}
    for name in store.metadata.columns:
        file = store.path / f"{name}.npy"
        flip(file, -1, noticed=False)
        files = {path.name for path in store.path.iterdir()}
        with pytest.raises(StoreError, match=rf"column '{name}'"):
            COPIES[verb](store.path, tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} == before
        assert {path.name for path in store.path.iterdir()} == files
        flip(file, -1, noticed=False)
    COPIES[verb](store.path, tmp_path / "out")
    if verb in ("partition", "split", "shard"):
        verify(tmp_path / "out")


def test_rows_and_sources_are_looked_at_once(tmp_path) -> None:
    store = small_random_store(tmp_path / "store", 60, 400)
    store.require_edges()
    for name, values, message in (
        (
            "indptr",
            np.where(np.arange(61) == 7, 10**6, store.indptr),
            r"'indptr' is damaged: the offsets fall at entry 8",
        ),
        (
            "indices",
            np.where(np.arange(400) == 7, 60, store.indices),
            r"'indices' is damaged: entry 7 is 60, not one of",
        ),
        (
            "indices",
            np.where(np.arange(400) == 9, -1, store.indices),
            r"'indices' is damaged: entry 9 is -1, not one of",
        ),
    ):
        with pytest.raises(StoreError, match=message):
            store.with_({name: values}).require_edges()
    with pytest.raises(StoreError, match="a value is 99, not one of 60 nodes"):
        store.require_nodes(np.array([3, 99]))


@pytest.mark.parametrize("stray", [-1, 60, 2**60])
def test_a_split_that_lists_no_node_reaches_nobody(tmp_path, stray) -> None:
    """Also where nobody noticed the damage by its checksum."""
    store = formula_store(tmp_path / "store")
    ids = store.splits["val"].copy()
    ids[2] = stray
    store = GraphStore.open(tmp_path / "store")
    store._columns["split_val"] = ids
    with pytest.raises(StoreError, match=rf"column 'split_val' is damaged: entry 2 is {stray}, not one of 60 nodes"):
        store.split("train")
    with pytest.raises(StoreError, match="split_val"):
        store.column("split_val")
    with pytest.raises(StoreError, match="split_val"):
        export(store, tmp_path / "graph.npz")


@pytest.mark.parametrize("label", [3, -2, 2**55])
def test_a_label_that_is_no_class_reaches_no_loop(tmp_path, label) -> None:
    """Loops count by class; also where nobody noticed the damage by its checksum."""
    store = formula_store(tmp_path / "store")
    labels = store.y.copy()
    labels[5] = label
    store = GraphStore.open(tmp_path / "store")
    store._columns["y"] = labels
    with pytest.raises(StoreError, match=rf"column 'y' is damaged: row 5 is class {label}, of 3 classes"):
        partita.inspect(store)
