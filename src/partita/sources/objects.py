"""Graphs that are objects of other libraries, as arrays by name. None of these libraries is imported here.

- PyG's ``HeteroData`` and DGL graphs of several types, see :mod:`partita.sources.typed_objects`.
- PyG's ``Data``, or a dataset that holds one: ``edge_index``, ``x``, ``y``, ``edge_weight``, ``num_nodes`` and the
  masks. A dataset of OGB has its split. Features of edges are left out.
- A DGL graph: its edges, and ``feat``, ``label`` and the masks of its nodes.
- A SciPy sparse matrix or array A, square: an edge from i to j for every entry A[i, j] that is stored, with the
  entry as its weight, unless all are 1. Files of ``scipy.sparse.save_npz`` likewise.
- A dictionary of arrays or tensors by the names of :mod:`partita.sources.array_graph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Num, Shaped

from partita.core.errors import InputError
from partita.graph.column_specs import HELD, MASKS
from partita.sources.arrays import ArrayFile
from partita.sources.typed_objects import TypedObject

OGB_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
"""OGB's names of splits, and those of their masks here."""

_OBJECTS = (
    "PyG's Data or HeteroData, a DGL graph, a networkx graph, a data frame of edges, a SciPy sparse matrix, two arrays "
    "(src, dst), a dictionary of arrays, or the path of a file"
)


def arrays_of(source: Any) -> tuple[str, dict[str, ArrayFile]]:
    """What to call an object in messages, and its arrays.

    Raises:
        InputError: it is no graph, several graphs, or one without edges.
    """
    where = name_of(source)
    if isinstance(source, Mapping):
        where, found = "arrays", dict(source)
    elif hasattr(source, "tocoo"):
        found = _of_sparse(where, source.tocoo())
    elif hasattr(source, "edge_index") or hasattr(source, "edge_types"):
        found = _of_pyg(where, source)
    elif hasattr(source, "ndata") and hasattr(source, "edges"):
        found = _of_dgl(where, source)
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__") and not hasattr(source, "shape"):
        return _of_dataset(where, source)
    else:
        raise InputError(f"{where} is not a graph", where="source", fix=f"Give {_OBJECTS}")
    arrays = {name: array_of(f"{where}, {name}", value) for name, value in found.items() if value is not None}
    return where, {name: ArrayFile.held(f"{where}, {name}", array) for name, array in arrays.items()}


def name_of(source: Any) -> str:
    """What to call an object in messages: its library and its type."""
    return f"{type(source).__module__.partition('.')[0]} {type(source).__name__}"


def _of_dataset(where: str, dataset: Any) -> tuple[str, dict[str, ArrayFile]]:
    if len(dataset) != 1:
        raise InputError(
            f"{where} has {len(dataset)} graphs, a store holds one", where="source", fix="Give one of them: dataset[0]"
        )
    graph = dataset[0]
    labels = None
    if isinstance(graph, tuple):  # OGB's datasets for DGL and without a library give the labels beside the graph
        graph, labels = graph
    if isinstance(graph, Mapping):  # OGB's names, without a library
        given = {"edge_index": "edge_index", "node_feat": "x", "num_nodes": "num_nodes"}
        graph = {ours: graph[theirs] for theirs, ours in given.items() if graph.get(theirs) is not None}
    name, arrays = arrays_of(graph)
    if labels is not None and "y" not in arrays:
        arrays["y"] = ArrayFile.held(f"{name}, y", labels_of(array_of(f"{name}, y", labels)))
    if hasattr(dataset, "get_idx_split"):
        split, num_nodes = dataset.get_idx_split(), len(arrays["x" if "x" in arrays else "y"])
        for theirs, ours in OGB_SPLITS.items():
            mask = mask_of(array_of(f"split {theirs}", split[theirs]), num_nodes, f"split {theirs}")
            arrays[ours] = ArrayFile.held(f"{name}, {ours}", mask)
    return name, arrays


def _of_pyg(where: str, data: Any) -> dict[str, Any]:
    if hasattr(data, "edge_types"):
        return _of_hetero_data(where, data)
    if data.edge_index is None:
        raise InputError(f"{where} has no edge_index", where="source", fix="Give a graph with edges")
    found: dict[str, Any] = {
        name: getattr(data, name, None) for name in ("edge_index", "x", "edge_weight", "num_nodes", *MASKS.values())
    }
    known = {*found, "y"}
    names = data.keys()  # a method of PyG's, no dictionary's
    found |= {name: data[name] for name in names if name not in known and hasattr(data[name], "shape")}
    found |= _times_of_data(found, data)
    y = getattr(data, "y", None)
    found["y"] = None if y is None else labels_of(array_of(f"{where}, y", y))
    for name in MASKS.values():
        if found[name] is not None and len(found[name].shape) == 2:  # a column for each of several splits
            found[name] = found[name].T
    return found


def _times_of_data(found: dict[str, Any], data: Any) -> dict[str, Any]:
    """PyG's attribute ``time``, which is of nodes, or of edges where it has as many entries as there are edges only."""
    time = found.get("time")
    if time is None:
        return {}
    name = "node_time" if len(time) == data.num_nodes else "edge_time"
    return {"time": None, name: time} if name not in found else {}


def _of_hetero_data(where: str, data: Any) -> dict[str, Any]:
    nodes, edges = {name: data[name] for name in data.node_types}, {each: data[each] for each in data.edge_types}
    used = {"x", "y", "num_nodes", "edge_index", "edge_weight", "time", "seed_time", *MASKS.values(), *HELD.values()}
    features = {name: of.edge_attr for name, of in edges.items() if getattr(of, "edge_attr", None) is not None}
    if len(features) == len(edges) and len({rows.shape[1:] for rows in features.values()}) == 1:
        used.add("edge_attr")
    else:  # columns of one kind for all edges, or none: they are named as unused
        features = {}
    unused = {
        f"{name if isinstance(name, str) else ':'.join(name)} {key}": value
        for name, of in {**nodes, **edges}.items()
        for key, value in of.items()
        if key not in used and hasattr(value, "shape")
    }

    def held(key: str, groups: Mapping[Any, Any]) -> dict[Any, Any]:
        return {
            name: array_of(f"{where}, {key} of {name}", of[key])
            for name, of in groups.items()
            if getattr(of, key, None) is not None
        }

    ends = held("edge_index", edges)
    if missing := [name for name in edges if name not in ends]:
        raise InputError(f"{':'.join(missing[0])} has no edge_index", where=where, fix="Give its edges, or remove it")
    return TypedObject(
        where,
        {name: int(of.num_nodes) for name, of in nodes.items()},
        ends,
        held("x", nodes),
        {name: labels_of(y) for name, y in held("y", nodes).items()},
        {name: found for name in MASKS.values() if (found := held(name, nodes))},
        held("edge_weight", edges),
        {name: array_of(f"{where}, edge_attr of {name}", rows) for name, rows in features.items()},
        {name: array_of(f"{where}, {name}", value) for name, value in unused.items()},
        {name: found for name in HELD.values() if (found := held(name, edges))},
        held("time", {**nodes, **edges}),
        held("seed_time", nodes),
    ).arrays()


def _of_dgl_types(where: str, graph: Any) -> dict[str, Any]:
    nodes = {name: graph.nodes[name].data for name in graph.ntypes}

    def held(key: str) -> dict[str, Any]:
        return {name: array_of(f"{where}, {key} of {name}", of[key]) for name, of in nodes.items() if key in of}

    return TypedObject(
        where,
        {name: int(graph.num_nodes(name)) for name in nodes},
        {
            each: np.stack([array_of(where, ends) for ends in graph.edges(etype=each)])
            for each in graph.canonical_etypes
        },
        held("feat"),
        {name: labels_of(y) for name, y in held("label").items()},
        {name: found for name in MASKS.values() if (found := held(name))},
    ).arrays()


def _of_dgl(where: str, graph: Any) -> dict[str, Any]:
    if getattr(graph, "is_homogeneous", True) is False:
        return _of_dgl_types(where, graph)
    sources, targets = (array_of(where, ends) for ends in graph.edges())
    nodes = graph.ndata
    found: dict[str, Any] = {"edge_index": np.stack([sources, targets]), "num_nodes": graph.num_nodes()}
    found |= {name: nodes[name] for name in MASKS.values() if name in nodes}
    used = {*MASKS.values(), "feat", "label"}
    found |= {f"ndata {name}": nodes[name] for name in nodes if name not in used}
    edge_columns = {"feat": "edge_attr"}
    edata = getattr(graph, "edata", {})
    found |= {edge_columns.get(name, f"edata {name}"): edata[name] for name in edata}
    if "feat" in nodes:
        found["x"] = nodes["feat"]
    if "label" in nodes:
        found["y"] = labels_of(array_of(f"{where}, label", nodes["label"]))
    return found


def _of_sparse(where: str, matrix: Any) -> dict[str, Any]:
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{where} of shape {matrix.shape}: must be square", where="source", fix="Give an adjacency")
    return _of_entries(matrix.row, matrix.col, matrix.data, matrix.shape[0])


def _of_entries(rows: Any, columns: Any, data: Any, num_nodes: int) -> dict[str, Any]:
    found = {"edge_index": np.stack([rows, columns]).astype(np.int64), "num_nodes": num_nodes}
    return found if (data == 1).all() else {**found, "edge_weight": data}


def is_sparse_file(arrays: Mapping[str, ArrayFile]) -> bool:
    """Whether these are the arrays of a sparse matrix that SciPy has written."""
    return "edge_index" not in arrays and {"format", "shape", "data"} <= arrays.keys()


def sparse_arrays(path: Path, arrays: Mapping[str, ArrayFile]) -> dict[str, ArrayFile]:
    """The same as a graph; all of its edges are in memory meanwhile.

    Raises:
        InputError: a format that is not known, or arrays that do not fit each other.
    """
    kind = arrays["format"].load().reshape(-1)[0]
    kind = kind.decode() if isinstance(kind, bytes) else str(kind)
    names = {"coo": ("row", "col"), "csr": ("indices", "indptr"), "csc": ("indices", "indptr")}.get(kind)
    if names is None or not set(names) <= arrays.keys():
        raise InputError(f"a sparse matrix in the format '{kind}'", where=str(path), fix="Save it as coo, csr or csc")
    shape, data = arrays["shape"].load().tolist(), arrays["data"].expect("fiub", 1).load()
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"a matrix of shape {tuple(shape)}: must be square", where=str(path), fix="Give an adjacency")
    first, second = (arrays[name].expect("iu", 1).load() for name in names)
    if kind != "coo":
        if len(second) != shape[0] + 1 or second[0] != 0 or second[-1] != len(data) or (np.diff(second) < 0).any():
            raise arrays["indptr"].fail(f"is not a list of offsets from 0 to {len(data)}, never descending")
        expanded = np.repeat(np.arange(shape[0]), np.diff(second))
        first, second = (expanded, first) if kind == "csr" else (first, expanded)
    if not len(first) == len(second) == len(data):
        raise InputError("has index arrays of another length than its data", where=str(path), fix="Write it again")
    found = _of_entries(first, second, data, shape[0])
    return {name: ArrayFile.held(f"{path}, {name}", np.asarray(value)) for name, value in found.items()}


def labels_of(y: Num[np.ndarray, "N ..."]) -> Num[np.ndarray, "N ..."]:
    """Labels as a source has them: a column of one is no matrix; a matrix of zeros and ones is multi-label."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind != "f":
        return y
    if y.ndim == 2 and np.isin(y, (0, 1)).all():
        return y.astype(np.uint8)
    return y


def mask_of(ids: Int[np.ndarray, "n"], num_nodes: int, where: str) -> Bool[np.ndarray, "N"]:
    """Which of all nodes are among some ids.

    Raises:
        InputError: an id is none.
    """
    wrong = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if len(wrong):
        what = f"node {ids[wrong[0]]} in row {wrong[0]} (from 0): the graph has nodes 0 to {num_nodes - 1}"
        raise InputError(what, where=where, fix="Fix the file")
    mask = np.zeros(num_nodes, dtype=bool)
    mask[ids] = True
    return mask


def array_of(where: str, value: Any) -> Shaped[np.ndarray, "..."]:
    """An array of what may be a tensor on any device.

    Raises:
        InputError: it is sparse, or holds objects.
    """
    if hasattr(value, "layout") and "strided" not in str(value.layout):
        raise InputError("is a sparse tensor", where=where, fix="Make it dense, or leave it out")
    for method in ("detach", "cpu"):
        value = getattr(value, method, lambda value=value: value)()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise InputError(f"holds {array.dtype.name}, which cannot be used", where=where, fix="Give numbers")
    return array
