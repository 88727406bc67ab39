"""Full-graph inference: exact, whatever the memory limit, and tidy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from partita.core.errors import ResourceError
from partita.features.rows import FeatureColumn
from partita.graph.generate import generate_sbm
from partita.infer import scratch as scratch_module
from partita.infer.layerwise import LayerwiseInference
from partita.nn.layers import LAYERS
from partita.nn.model import build_model
from partita.sample.topology import LocalTopology, as_tensor
from partita.testing.graphs import formula_store, small_random_store


def make(store, name, layers=3):
    model = build_model(
        name, in_width=store.num_features, hidden=8, out_width=store.num_classes, layers=layers, dropout=0.5
    ).double()
    return model, LocalTopology(store), FeatureColumn(as_tensor(store.x), dtype=torch.float64)


def run(model, topology, column, ids=None, **options):
    parts = list(LayerwiseInference(model, topology, column, **options).run(ids))
    return (
        torch.cat([part.ids for part in parts]),
        torch.cat([part.output for part in parts]),
        torch.cat([part.embedding for part in parts]),
        len(parts),
    )


def test_sage_mean_equals_dense_matrices(tmp_path) -> None:
    store = formula_store(tmp_path / "g", num_nodes=40)
    model, topology, column = make(store, "sage", layers=2)
    adjacency = torch.zeros(40, 40, dtype=torch.float64)
    for v in range(40):
        for u in store.neighbors(v).tolist():
            adjacency[v, u] += 1
    mean = adjacency / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
    h = torch.from_numpy(store.x.astype("float64"))
    model.eval()
    for stage in model.stages:
        lin_l, lin_r = stage.layer.lin_l, stage.layer.lin_r
        h = lin_l(mean @ h) + lin_r(h)
        if stage is not model.stages[-1]:
            h = torch.relu(stage.norm(h))
    torch.testing.assert_close(run(model, topology, column)[1], h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_any_memory_limit_gives_the_same(tmp_path, name, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", 200, 1500)
    model, topology, column = make(store, name)
    ids, output, embedding, blocks = run(model, topology, column)
    assert blocks == 1
    assert torch.equal(ids, torch.arange(200, dtype=ids.dtype))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    spilled = run(model, topology, column, memory_limit=20_000, scratch=scratch)
    assert spilled[3] > 3
    for mine, theirs in zip((ids, output, embedding), spilled):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(("name", "arrays"), [("sage", 2), ("gat", 5)])
def test_rows_of_all_nodes_are_spilled_only_when_they_do_not_fit(tmp_path, name, arrays, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", 200, 1500)
    model, topology, column = make(store, name)
    sizes = []
    allocate = scratch_module.os.posix_fallocate
    monkeypatch.setattr(
        scratch_module.os, "posix_fallocate", lambda f, at, size: (sizes.append(size), allocate(f, at, size))
    )
    run(model, topology, column, memory_limit=10**6)
    assert sizes == []
    run(model, topology, column, memory_limit=20_000)
    assert len(sizes) == arrays  # two hidden layers; attention also keeps three layers' messages


def test_only_the_nodes_asked_for_in_their_order(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 200, 1500)
    model, topology, column = make(store, "gat")
    _, everything, embeddings, _ = run(model, topology, column)
    wanted = torch.tensor([150, 3, 77])
    ids, output, embedding, _ = run(model, topology, column, wanted)
    assert ids.tolist() == wanted.tolist()
    torch.testing.assert_close(output, everything[wanted])
    torch.testing.assert_close(embedding, embeddings[wanted])


def test_the_mode_of_the_model_is_put_back(tmp_path) -> None:
    store = formula_store(tmp_path / "g")
    model, topology, column = make(store, "sage")
    model.train()
    run(model, topology, column)
    assert model.training


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch) -> None:
    store = small_random_store(tmp_path / "g", 200, 1500)
    model, topology, column = make(store, "sage")

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch_module.os, "posix_fallocate", full)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ResourceError, match=r"hidden layer 1: .* bytes.*--memory-limit"):
        run(model, topology, column, memory_limit=20_000, scratch=scratch)
    assert list(scratch.iterdir()) == []


_MEASURED = """
import sys, threading, time
import torch
import partita
from partita import kernels
from partita.core.memory import private_bytes
from partita.features.rows import FeatureColumn
from partita.graph.generate import generate_sbm
from partita.infer.layerwise import LayerwiseInference
from partita.nn.model import build_model
from partita.sample.topology import LocalTopology, as_tensor

graph = partita.open(sys.argv[1])
model = build_model(sys.argv[2], in_width=64, hidden=256, out_width=8, layers=3)
def run(ids, limit, way):
    column = FeatureColumn(as_tensor(graph.x))
    in_order = {"in order": True, "by edge": False}[way]
    inference = LayerwiseInference(model, LocalTopology(graph), column, memory_limit=limit, in_order=in_order)
    return sum(len(rows.ids) for rows in inference.run(ids))
run(torch.arange(100), 2**22, "by edge")  # loads kernels and libraries
base, peak, done = private_bytes(), 0, False
def watch():
    global peak
    while not done:
        peak = max(peak, private_bytes() - base)
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
run(None, int(sys.argv[3]), sys.argv[4])
done = True
watcher.join()
print(peak)
"""


@pytest.mark.parametrize("way", ["by edge", "in order"])
@pytest.mark.parametrize("name", ["gat", "gin"])
def test_private_memory_stays_within_the_limit(tmp_path, name, way) -> None:
    # Three layers' rows and messages take over 180 MB. The product libraries' own buffers are not ours to limit.
    generate_sbm(tmp_path / "g", num_nodes=60_000, average_degree=10)
    limit = 64 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(tmp_path / "g"), name, str(limit), way],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        # What is freed goes back to the system at once, so that what is counted is what is held.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert int(done.stdout) < limit + 24 * 2**20


@pytest.mark.parametrize("name", ["sage", "gcn"])
def test_wide_rows_are_mapped_once_per_node(tmp_path, name) -> None:
    # The input is more than four times as wide as the result, so the sources are projected before they are summed.
    store = small_random_store(tmp_path / "g", 100, 700, num_features=50)
    model, topology, column = make(store, name, layers=1)
    assert model.layers[0].split.message_width == store.num_classes
    seen = []
    model.layers[0].message, message = lambda rows: (seen.append(len(rows)), message(rows))[1], model.layers[0].message
    exact = run(model, topology, column)[1]
    assert sum(seen) == 100
    torch.testing.assert_close(run(model, topology, column, memory_limit=30_000)[1], exact)
