"""Data frames, graphs of networkx and pairs of arrays as sources: the same stores as files of the same content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch

import partita
from partita.core.errors import ConfigError, InputError
from partita.graph.store import GraphStore

SOURCE = ["b", "a", "c", "a", "d", "d"]
TARGET = ["a", "c", "b", "d", "c", "c"]
NODES = {"id": ["d", "a", "b", "c", "e"], "f": [0.5, 1.0, 2.0, 3.0, 4.0], "label": ["x", "y", "x", None, "y"]}
FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pandas.DataFrame, "polars": polars.DataFrame, "arrow": pyarrow.table,
    "pandas-index": lambda columns: pandas.DataFrame(columns).set_index(next(iter(columns))),
}  # fmt: skip


def contents(path: Any) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.name != "metadata.json"}


@pytest.mark.parametrize("kind", FRAMES)
def test_data_frames_are_as_files(tmp_path, kind) -> None:
    (tmp_path / "e.csv").write_text(
        "from,to,w\n" + "".join(f"{s},{t},{n}\n" for n, (s, t) in enumerate(zip(SOURCE, TARGET)))
    )
    rows = zip(*NODES.values())
    (tmp_path / "n.csv").write_text("id,f,label\n" + "".join(f"{i},{f},{'' if c is None else c}\n" for i, f, c in rows))
    partita.ingest(tmp_path / "e.csv", tmp_path / "wanted", nodes=tmp_path / "n.csv", weight_column="w")
    edges, nodes = {"from": SOURCE, "to": TARGET, "w": [0.0, 1, 2, 3, 4, 5]}, FRAMES[kind](NODES)
    summary = partita.ingest(FRAMES[kind](edges), tmp_path / "found", nodes=nodes, weight_column="w")
    assert (summary.nodes, summary.edges, summary.ids, summary.header) == (5, 6, "str", None)
    assert contents(tmp_path / "found") == contents(tmp_path / "wanted")


@pytest.mark.parametrize("array", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_pairs_of_arrays(tmp_path, array) -> None:
    src, dst = array([5, 0, 7, 5]), array([0, 7, 5, 0])
    summary = partita.ingest((src, dst), tmp_path / "s")
    assert (summary.nodes, summary.edges, summary.repeated_edges) == (3, 4, 1)
    assert GraphStore.open(tmp_path / "s").names().tolist() == [0, 5, 7]
    partita.ingest((np.array(SOURCE), np.array(TARGET)), tmp_path / "named")
    assert GraphStore.open(tmp_path / "named").names().tolist() == ["b", "a", "c", "d"]
    with pytest.raises(InputError, match=r"two arrays of shapes \(4,\) and \(3,\)"):
        partita.ingest((src, dst[:3]), tmp_path / "other")


def test_arrays_about_nodes(tmp_path) -> None:
    src, dst = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0])
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 1, -1])
    summary = partita.ingest((src, dst), tmp_path / "s", features=x, labels=y)
    store = GraphStore.open(tmp_path / "s")
    assert np.array_equal(store.column("x"), x.numpy())
    assert (summary.ids, summary.class_sizes) == ("index", {"0": 1, "1": 2})


def test_a_graph_of_networkx(tmp_path) -> None:
    graph = networkx.karate_club_graph()
    summary = partita.ingest(graph, tmp_path / "s", label_column="club", feature_columns=[])
    assert (summary.nodes, summary.edges, summary.both_directions) == (34, 156, True)
    assert summary.class_sizes == {"Mr. Hi": 17, "Officer": 17}
    assert "attributes of edges not used: weight" in summary.notes
    weighted = partita.ingest(graph, tmp_path / "w", label_column="club", feature_columns=[], weight_column="weight")
    assert not [note for note in weighted.notes if "not used" in note]
    directed = networkx.DiGraph([("a", "b"), ("b", "c")])
    directed.add_node("alone")
    summary = partita.ingest(directed, tmp_path / "d")
    assert (summary.nodes, summary.edges, summary.both_directions) == (4, 2, False)
    assert GraphStore.open(tmp_path / "d").names().tolist() == ["a", "b", "c", "alone"]


def test_attributes_of_networkx(tmp_path) -> None:
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, {node: {"size": node / 2, "label": node % 2} for node in graph})
    summary = partita.ingest(graph, tmp_path / "s")
    assert (summary.features, summary.classes) == (1, 2)
    assert GraphStore.open(tmp_path / "s").column("x")[:, 0].tolist() == [0, 0.5, 1, 1.5]
    del graph.nodes[2]["size"]
    with pytest.raises(InputError, match=r"networkx graph, row 2 \(from 0\), column size: the cell is empty"):
        partita.ingest(graph, tmp_path / "t")


def test_what_is_no_source(tmp_path) -> None:
    graph = networkx.relabel_nodes(networkx.path_graph(2), {0: (0, 1)})
    with pytest.raises(InputError, match=r"node \(0, 1\) is of type tuple.*convert_node_labels_to_integers"):
        partita.ingest(graph, tmp_path / "s")
    with pytest.raises(InputError, match="named by a number, another by the same number"):
        partita.ingest(networkx.Graph([(1, "1")]), tmp_path / "s")
    with pytest.raises(ConfigError, match="has nodes already"):
        partita.ingest(networkx.path_graph(3), tmp_path / "s", features=np.ones((3, 2)))
    with pytest.raises(InputError, match="numpy ndarray is not a graph"):
        partita.ingest(np.ones((3, 3)), tmp_path / "s")
    with pytest.raises(InputError, match="pandas DataFrame: two columns are named 'a'"):
        partita.ingest(pandas.DataFrame([[1, 2]], columns=["a", "a"]), tmp_path / "s")
    with pytest.raises(InputError, match="pandas DataFrame: cannot be read as a table"):
        partita.ingest(pandas.DataFrame({"a": [1, "b"], "b": [1, 2]}), tmp_path / "s")
    with pytest.raises(InputError, match="nodes: is an array, not a table"):
        partita.ingest((np.array([0]), np.array([1])), tmp_path / "s", nodes=np.ones(2))
    assert not (tmp_path / "s").exists()
