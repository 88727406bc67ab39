"""From a graph to a store in partition order: every partitioner, every way it can go wrong, and resuming."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from array_stream import ArrayStream

import partita
from partita.core.errors import ConfigError, InputError, StoreError
from partita.partitioning.estimate import estimate
from partita.partitioning.job import parse_parts, partition, prepare
from partita.partitioning.options import PartitionOptions
from partita.partitioning.partitioners import PARTITIONERS
from partita.sample.presample import presample
from partita.testing.graphs import formula_store, small_random_store
from partita.train.trainer import Trainer


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "store"
    return small_random_store(path, 300, 1500, undirected=True, num_features=6)


def settings(**more):
    return {"model": "sage", "layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 40, "epochs": 2, **more}


def trained(store, out):
    """The bytes of all checkpoints; and by the user's ids the predicted classes, and their probabilities."""
    Trainer(store, out=out, **settings()).fit()
    partita.predict(out, out=out / "predictions.csv")
    rows = sorted(csv.DictReader((out / "predictions.csv").read_text().splitlines()), key=lambda row: int(row["node"]))
    models = [path.read_bytes() for path in sorted((out / "checkpoints").rglob("model.safetensors"))]
    assert models
    return models, [row["prediction"] for row in rows], np.array([float(row["probability"]) for row in rows])


@pytest.fixture(scope="module")
def reference(graph, tmp_path_factory):
    return trained(graph, tmp_path_factory.mktemp("run") / "run")


@pytest.mark.parametrize("algorithm", sorted(PARTITIONERS))
def test_training_on_the_reordered_store_gives_the_same_bytes(graph, reference, tmp_path, algorithm):
    summary = partition(graph, tmp_path / "parts", parts=3, algorithm=algorithm)
    store = partita.open(tmp_path / "parts")
    assert store.num_parts == 3
    assert store.original_index is not None
    assert summary.quality.nodes.counts == tuple(np.diff(store.part_offsets).tolist())
    assert store.metadata.notes["partition"]["algorithm"] == algorithm
    again = tmp_path / "again"  # and once more, from a store that is in partition order already
    partition(store, again, parts="2x2", algorithm="random", seed=5)
    for path in (tmp_path / "parts", again):
        models, predictions, probabilities = trained(partita.open(path), tmp_path / f"run-{path.name}")
        assert models == reference[0]
        assert predictions == reference[1]
        # Matrix products of other neighboring rows differ in the last bit.
        np.testing.assert_allclose(probabilities, reference[2], rtol=1e-6)
    assert partita.open(again).metadata.notes["levels"] == [2, 2]


def test_presampled_weights_move_along(tmp_path):
    store = small_random_store(tmp_path / "store", 200, 900, undirected=True)
    presample(store, fanout=[3, 3], batch_size=50, epochs=2)
    store = partita.open(store.path)
    summary = partition(store.path, tmp_path / "parts", parts=4, weights="presample")
    new = partita.open(tmp_path / "parts")
    assert new.presample_node[np.argsort(new.original_index)].tolist() == store.presample_node.tolist()
    assert new.presample_edge.sum() == store.presample_edge.sum()
    assert summary.quality.load.total == store.presample_node.sum()
    assert 0 < summary.quality.cross_edge_share < 1
    partita.verify(new.path)


def test_an_assignment_goes_round(graph, tmp_path):
    first = partition(graph, tmp_path / "parts.csv", parts=4, algorithm="spring")
    assert first.path == str(tmp_path / "parts.csv")
    second = partition(graph, tmp_path / "store", parts=4, algorithm=str(tmp_path / "parts.csv"))
    assert second.quality == first.quality
    refined = partition(graph, None, parts=4, algorithm=str(tmp_path / "parts.csv"), refine=5)
    assert refined.path is None
    assert refined.moved > 0
    assert refined.quality.replication_factor < first.quality.replication_factor


def test_edges_without_a_store_get_an_assignment(tmp_path):
    (tmp_path / "edges.csv").write_text("a,b\n" + "".join(f"{v},{(v + 1) % 50}\n" for v in range(50)))
    summary = partition(tmp_path / "edges.csv", tmp_path / "parts.npy", parts=2, algorithm="spring", undirected=True)
    assert summary.quality is None
    assert np.bincount(np.load(tmp_path / "parts.npy")).sum() == 50
    with pytest.raises(ConfigError, match="only a graph store can be re-ordered"):
        partition(tmp_path / "edges.csv", tmp_path / "store", parts=2, algorithm="spring")
    with pytest.raises(InputError, match="grouped by destination"):
        partition(tmp_path / "edges.csv", tmp_path / "other.npy", parts=2, algorithm="hdrf")
    assert {entry.name for entry in tmp_path.iterdir()} == {"edges.csv", "parts.npy"}


def test_an_empty_part_is_allowed_and_said(graph, tmp_path):
    summary = partition(graph, tmp_path / "parts", parts=3, algorithm=lambda stream, p: np.zeros(300, dtype=int))
    assert summary.quality.empty_parts == 2
    assert any("2 of 3 parts are empty" in note and "--algorithm" in note for note in summary.notes)
    assert partita.open(tmp_path / "parts").part_offsets.tolist() == [0, 300, 300, 300]
    partita.verify(tmp_path / "parts")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"parts": 0}, ConfigError, "invalid number of parts: '0'"),
        ({"parts": "2x"}, ConfigError, "invalid number of parts: '2x'"),
        ({"parts": "2x-1"}, ConfigError, "invalid number of parts"),
        ({"parts": 301}, InputError, "301 parts are more than the 300 nodes"),
        ({"parts": 2, "algorithm": "metsi"}, ConfigError, "Did you mean 'metis'"),
        ({"parts": 2, "weights": "presample"}, ConfigError, "partita presample"),
        ({"parts": 2, "weights": "heavy"}, ConfigError, "there is no weighting 'heavy'"),
        ({"parts": 2, "epsilon": -1}, ConfigError, "epsilon: .* is not between 0 and 1,000"),
        ({"parts": 2, "epsilon": float("nan")}, ConfigError, "epsilon: .* is not between 0 and 1,000"),
        ({"parts": 2, "refine": -1}, ConfigError, "refine: -1 is not between 0 and"),
        ({"parts": 2, "memory_limit": "lots"}, ConfigError, "not a size"),
        ({"parts": 2, "undirected": True}, ConfigError, "a store holds its own edges"),
        ({"parts": 2, "feature_dtype": "int8"}, ConfigError, "invalid feature dtype"),
    ],
)
def test_bad_arguments_get_one_clear_message(graph, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        partition(graph, tmp_path / "out", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_there_stays(graph, tmp_path):
    partition(graph, tmp_path / "parts", parts=2, algorithm="random")
    before = partita.open(tmp_path / "parts").fingerprint
    with pytest.raises(StoreError, match="already exists"):
        partition(graph, tmp_path / "parts", parts=3, algorithm="random")
    with pytest.raises(InputError, match="node 0 has part 9"):
        partition(graph, tmp_path / "parts", parts=2, overwrite=True, algorithm=lambda s, p: np.full(300, 9))
    assert partita.open(tmp_path / "parts").fingerprint == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["parts"]


class Growing(ArrayStream):
    """One edge more in every pass."""

    def edges(self, doing):
        yield from super().edges(doing)
        self._src, self._dst = np.append(self._src, 0), np.append(self._dst, 1)


def test_a_stream_that_changes_is_noticed():
    with pytest.raises(InputError, match="changed between two passes: 2 edges before, 3 now"):
        partition(Growing(np.array([0, 1]), np.array([1, 2])), None, parts=2, algorithm="spring")


def test_levels():
    assert parse_parts(4) == ((), 4)
    assert parse_parts("2x4") == ((2, 4), 8)
    assert parse_parts("1X3x2") == ((1, 3, 2), 6)


def test_an_estimate_says_what_it_takes_and_changes_nothing(graph, tmp_path):
    job = prepare(graph, PartitionOptions(parts=4, algorithm="spring+", memory_limit="32MiB", refine=1))
    expected = estimate(job, tmp_path / "deep" / "out", "float16")
    assert expected.trial_edges == graph.num_edges
    assert expected.seconds > 0
    assert 64 << 20 < expected.memory_bytes < 100 << 20
    partition(graph, tmp_path / "out", parts=4, algorithm="random", feature_dtype="float16")
    written = sum(record.bytes for record in partita.open(tmp_path / "out").metadata.columns.values())
    assert abs(written - expected.disk_bytes) < 4096  # headers and part_offsets
    assert job.task.notes == []


_KILLED = """
    import os, signal, sys
    from partita.partitioning import _scatter
    from partita.graph.columns import PlacedColumn
    import partita
    put, calls = PlacedColumn.put, [0]

    def put_and_die(self, *args):
        calls[0] += 1
        if calls[0] == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return put(self, *args)

    PlacedColumn.put = put_and_die
    partita.partition(sys.argv[1], sys.argv[2], parts=3, algorithm="spring")
"""


def test_a_killed_job_goes_on_with_the_assignment_it_had(tmp_path):
    source = formula_store(tmp_path / "source", num_nodes=200)
    whole = partition(source, tmp_path / "whole", parts=3, algorithm="spring")
    for at in (1, 4, 9):
        out = tmp_path / f"out{at}"
        script = [sys.executable, "-c", textwrap.dedent(_KILLED), str(source.path), str(out), str(at)]
        done = subprocess.run(script, env=os.environ, check=False, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        summary = partition(source.path, out, parts=3, algorithm="spring")
        assert any("continued" in note for note in summary.notes)
        assert "partition" not in summary.seconds
        assert summary.quality == whole.quality
        assert partita.open(out).fingerprint == partita.open(tmp_path / "whole").fingerprint
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "whole", "out1", "out4", "out9"}
