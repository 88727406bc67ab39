"""Stores with wrong values: no verb crashes, hangs or takes them as they are where it reads them.

The values are wrong from the beginning, with checksums that fit them: as from somebody who means harm, or a disk that
lies. Wrong values whose checksums do not fit are in :mod:`tests.unit.graph.test_soundness`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import partita
from partita.cli import main
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def edited(array: np.ndarray, position: int, value: int) -> np.ndarray:
    changed = np.array(array)
    changed[position] = value
    return changed


DAMAGE = {
    "a row that ends before it begins": ("indptr", lambda store: edited(store.indptr, 40, 2)),
    "a row before the first edge": ("indptr", lambda store: edited(store.indptr, 40, -5)),
    "a row behind the last edge": ("indptr", lambda store: edited(store.indptr, 40, 1 << 40)),
    "a source that is no node": ("indices", lambda store: edited(store.indices, slice(100, 400), store.num_nodes)),
    "a negative source": ("indices", lambda store: edited(store.indices, slice(100, 400), -7)),
    "a source far away": ("indices", lambda store: edited(store.indices, slice(100, 400), 2**31 - 1)),
}

ANY = ["train", "{store}", "--out", "{out}", "--hidden", "4", "--epochs", "1"]
COMMON = [*ANY, "--layers", "2"]
TRAIN = [*COMMON, "--fanout", "3,3"]
ONE_LAYER = [*ANY, "--layers", "1", "--fanout", "3"]  # which reads features by the ids that were drawn
VERBS = {
    "sage": [*TRAIN, "--threads", "1"],
    "all neighbors": [*COMMON, "--fanout", "-1"],
    "max": [*TRAIN, "--aggregator", "max"],
    "gcn": [*TRAIN, "--model", "gcn"],
    "gat": [*TRAIN, "--model", "gat"],
    "weighted": [*TRAIN, "--weighted"],
    "layer-wise": [*COMMON, "--sampler", "layer", "--layer-budget", "30,20"],
    "walks": [*TRAIN, "--sampler", "walk"],
    **{f"one layer, {model}": [*ONE_LAYER, "--model", model] for model in ("sage", "gcn", "gat")},
    "one layer, layer-wise": [*ANY, "--layers", "1", "--sampler", "layer", "--layer-budget", "20"],
    "isolated": [*TRAIN, "--views", "cyclic", "--sync", "model-average", "--halo", "one-hop"],
    "evaluate": ["evaluate", "{run}", "--store", "{store}", "--split", "all"],
    "predict": ["predict", "{run}", "--store", "{store}", "--out", "{out}.csv"],
    "presample": ["presample", "{store}", "--fanout", "3,3", "--epochs", "1"],
    "quality": ["quality", "{store}"],
    "inspect": ["inspect", "{store}"],
    "export": ["export", "{store}", "--out", "{out}.npz"],
    "split": ["split", "{store}", "{out}"],
    "shard": ["shard", "{store}", "{out}", "--host", "1", "--hosts", "2"],
    **{
        f"partition {name}": ["partition", "{store}", "{out}", "--parts", "2", "--algorithm", name]
        for name in ("spring+", "spring", "two_phase", "hdrf", "greedy", "dbh", "random", "metis")
    },
    "report": ["report", "{run}", "--out", "{out}.html"],
}


NOT_READ = {"report"}
"""Verbs that do not look at edges."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> GraphStore:
    folder = tmp_path_factory.mktemp("sound")
    store = small_random_store(folder / "whole", 120, 900, num_features=3, weighted=True)
    partita.partition(store, folder / "store", parts=2, algorithm="random")
    return GraphStore.open(folder / "store")


@pytest.fixture(scope="module")
def run(sound: GraphStore, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    return partita.Trainer(sound, out=out, layers=2, hidden=4, fanout=(3, 3), epochs=1).fit().path


@pytest.fixture(params=DAMAGE)
def damaged(request, sound: GraphStore, tmp_path) -> Path:
    name, change = DAMAGE[request.param]
    with StoreWriter(tmp_path / "store") as writer:
        for each in sound.metadata.columns:
            writer.write(each, change(sound) if each == name else sound.column(each))
        writer.finish(
            num_nodes=sound.num_nodes, num_edges=sound.num_edges, task=sound.task, num_classes=sound.num_classes
        )
    return tmp_path / "store"


@pytest.mark.parametrize("verb", VERBS)
def test_a_damaged_store(damaged: Path, run: Path, tmp_path, capsys, verb) -> None:
    places = {"store": damaged, "out": tmp_path / "out", "run": run}
    before = set(os.listdir(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([word.format(**places) for word in VERBS[verb]])
    said = capsys.readouterr().err
    assert ended.value.code == (0 if verb in NOT_READ else 2), said
    if verb not in NOT_READ:
        assert "is damaged" in said
        assert "'indptr'" in said or "'indices'" in said
        left = set(os.listdir(tmp_path)) - before
        assert left <= ({"out"} if VERBS[verb][0] == "train" else set())
