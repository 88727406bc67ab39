"""Small files as users have them: each is read right, or refused in words, or read with a note that says how."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.core.errors import InputError
from partita.graph.store import GraphStore
from partita.sources.ingest import ingest

RING = "anna,bob\nbob,carl\ncarl,dora\ndora,anna\n"
PAIRS = "0,1\n1,2\n2,3\n3,0\n"


def read(folder: Path, files: dict[str, str | bytes], **options: Any) -> tuple[Any, GraphStore]:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {role: folder / name for role, name in options.items() if role in ("nodes", "labels", "splits", "features")}
    summary = ingest(folder / next(iter(files)), folder / "store", **{**options, **given})
    return summary, GraphStore.open(folder / "store")


@pytest.mark.parametrize(
    "header",
    [
        *("user_a,user_b", "citing,cited", "from_node,to_node", "node_1,node_2", "id_1,id_2", "id1,id2"),
        *("author1,author2", "paper,cites", "user,friend", "source,target", "FromNodeId,ToNodeId", "Who,Whom"),
    ],
)
def test_a_line_of_names_above_names_is_no_edge(tmp_path, header) -> None:
    summary, store = read(tmp_path, {"e.csv": f"{header}\n{RING}"})
    if header != "Who,Whom":  # no word that columns have: too little evidence in four lines, so it is said
        assert (summary.header, summary.nodes, summary.edges) == (True, 4, 4)
        assert store.names().tolist() == ["anna", "bob", "carl", "dora"]
    assert any(f"the first line, {header.replace(',', ', ')}, is taken" in note for note in summary.notes)


@pytest.mark.parametrize("first", ["head,neck", "source,target", "id,name"])
def test_a_first_edge_of_words_for_columns_is_an_edge(tmp_path, first) -> None:
    one, other = first.split(",")
    lines = f"{one},{other}\n{other},shoulder\nshoulder,arm\narm,{one}\n"
    summary, _ = read(tmp_path, {"e.csv": lines})
    assert (summary.header, summary.edges) == (False, 4)
    assert any("is taken as data" in note for note in summary.notes)


def test_nothing_is_said_of_a_header_above_numbers(tmp_path) -> None:
    summary, _ = read(tmp_path, {"e.csv": "apples,pears\n" + PAIRS})
    assert (summary.header, summary.edges) == (True, 4)
    assert not any("first line" in note for note in summary.notes)


@pytest.mark.parametrize("options", [{}, {"header": True}])
def test_labels_with_a_header(tmp_path, options) -> None:
    edges = "user,friend\n" + RING
    labels = "user,segment\nanna,x\nbob,y\ncarl,x\ndora,y\n"
    summary, store = read(tmp_path, {"e.csv": edges, "l.csv": labels}, labels="l.csv", **options)
    assert (summary.classes, summary.class_sizes) == (2, {"x": 2, "y": 2})
    assert store.y.tolist() == [0, 1, 0, 1]


def test_no_header_reaches_every_table(tmp_path) -> None:
    files = {"e.csv": "source,target\ntarget,source\n", "l.csv": "source,id\ntarget,class\n"}
    summary, _ = read(tmp_path, files, labels="l.csv", header=False)
    assert (summary.nodes, summary.edges, summary.class_sizes) == (2, 2, {"class": 1, "id": 1})


@pytest.mark.parametrize(
    ("column", "options", "task", "classes", "sizes"),
    [
        ("0 1 1 0", {}, "classes", 2, {"0": 2, "1": 2}),
        ("0.0 1.0 1.0 0.0", {}, "classes", 2, {"0": 2, "1": 2}),
        ("0.0 1.0 1.0 0.0", {"task": "regression"}, "regression", 1, {}),
        ("0.5 1.0 1.0 0.0", {}, "regression", 1, {}),
        ("100001 100002 100001 100001", {}, "classes", 2, {"100001": 3, "100002": 1}),
        ("1 11 21 1", {}, "classes", 3, {"1": 2, "11": 1, "21": 1}),
        ("1 2 3 1", {"keep_codes": True}, "classes", 4, {"0": 0, "1": 2, "2": 1, "3": 1}),
        ("-1 1 1 -1", {"unlabeled": "none"}, "classes", 2, {"-1": 2, "1": 2}),
        ("-1 1 0 -1", {"unlabeled": "-1"}, "classes", 2, {"0": 1, "1": 1}),
        ("-2 -1 1 2", {}, "classes", 4, {"-2": 1, "-1": 1, "1": 1, "2": 1}),
        ("yes no yes no", {}, "classes", 2, {"no": 2, "yes": 2}),
        ("True False True True", {}, "classes", 2, {"False": 1, "True": 3}),
        ("Müller Žižek 東京 Müller", {}, "classes", 3, {"Müller": 2, "Žižek": 1, "東京": 1}),
    ],
)
def test_labels(tmp_path, column, options, task, classes, sizes) -> None:
    nodes = "id,f,label\n" + "".join(f"{i},0.5,{cell}\n" for i, cell in enumerate(column.split()))
    summary, _ = read(tmp_path, {"e.csv": PAIRS, "n.csv": nodes}, nodes="n.csv", **options)
    assert (summary.task, summary.classes, summary.class_sizes) == (task, classes, sizes)


@pytest.mark.parametrize("column", ["-1 1 1 -1", "-1 0 1 2", "-1.0 1.0 1.0 -1.0", "-1 x y x"])
def test_minus_one_is_asked_about(tmp_path, column) -> None:
    nodes = "id,f,label\n" + "".join(f"{i},0.5,{cell}\n" for i, cell in enumerate(column.split()))
    with pytest.raises(InputError, match=r"nodes have the label -1.*--unlabeled none if it is a class"):
        read(tmp_path, {"e.csv": PAIRS, "n.csv": nodes}, nodes="n.csv")


@pytest.mark.parametrize(
    ("edges", "names"),
    [
        ("00000,00001\n00001,1\n", ["00000", "00001", "1"]),
        ("".join(f"{i},{i + 1}\n" for i in range(1, 400)) + "007,7\n", None),
        ("02139,10001\n10001,94103\n", ["02139", "10001", "94103"]),
    ],
)
def test_zeros_before_ids_stay(tmp_path, edges, names) -> None:
    summary, store = read(tmp_path, {"e.csv": edges})
    if names is not None:
        assert (summary.ids, store.names().tolist()) == ("str", names)
    else:
        assert summary.ids == "str"
        assert {"007", "7"} <= set(store.names().tolist())
        assert any("line 400, column 0: '007' has zeros before it" in note for note in summary.notes)


def test_zeros_before_ids_go_where_integers_are_asked_for(tmp_path) -> None:
    summary, store = read(tmp_path, {"e.csv": "00000,00001\n00001,5\n"}, ids="int")
    assert (summary.ids, store.names().tolist()) == ("int", [0, 1, 5])


def test_both_directions_in_a_table_are_not_doubled(tmp_path) -> None:
    both = "0,1\n1,0\n1,2\n2,1\n2,2\n"
    summary, _ = read(tmp_path, {"e.csv": both}, undirected=True)
    assert (summary.edges_read, summary.edges, summary.both_directions, summary.self_loops) == (5, 5, True, 1)
    assert any("both directions of every edge" in note for note in summary.notes)


@pytest.mark.parametrize(
    ("edges", "options", "wanted"),
    [
        ("0,1\n1,2\n0,1\n", {}, {"edges": 3, "repeated_edges": 1, "duplicates_dropped": 0, "both_directions": False}),
        ("0,1\n1,2\n0,1\n", {"deduplicate": True}, {"edges": 2, "repeated_edges": 1, "duplicates_dropped": 1}),
        ("0,1\n1,2\n", {"undirected": True}, {"edges": 4, "repeated_edges": 0, "both_directions": True}),
        ("0,1\n1,0\n1,2\n", {"undirected": True}, {"edges": 6, "repeated_edges": 2, "edges_read": 3}),
        ("0,0\n0,1\n", {}, {"edges": 2, "self_loops": 1}),
    ],
)
def test_edges_are_counted(tmp_path, edges, options, wanted) -> None:
    summary, _ = read(tmp_path, {"e.csv": edges}, **options)
    assert {name: summary[name] for name in wanted} == wanted


def test_edges_of_one_direction_are_said_to_be_directed(tmp_path) -> None:
    summary, _ = read(tmp_path, {"e.csv": PAIRS})
    assert any("--undirected adds the other directions" in note for note in summary.notes)


def test_columns_that_are_not_used_are_listed(tmp_path) -> None:
    edges = "source,target,weight,since\n0,1,0.5,2001\n1,2,0.5,2002\n"
    summary, store = read(tmp_path, {"e.csv": edges})
    assert store.edge_weight is None
    assert any(note.endswith("2 columns not used: weight, since") for note in summary.notes)


@pytest.mark.parametrize("suffix", ["bz2", "zip", "zst", "xz"])
def test_other_archives_are_refused_by_name(tmp_path, suffix) -> None:
    content = bz2.compress(PAIRS.encode()) if suffix == "bz2" else b"PK\x03\x04 and so on"
    with pytest.raises(InputError, match=rf"is packed as \.{suffix}, which is not read; gzip is"):
        read(tmp_path, {f"e.csv.{suffix}": content})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("comma.csv", PAIRS),
        ("semicolon.csv", PAIRS.replace(",", ";")),
        ("tab.tsv", PAIRS.replace(",", "\t")),
        ("bar.txt", PAIRS.replace(",", "|")),
        ("blanks.txt", PAIRS.replace(",", "   ")),
        ("snap.txt", "# Undirected graph\n# FromNodeId\tToNodeId\n" + PAIRS.replace(",", "\t")),
        ("windows.csv", PAIRS.replace("\n", "\r\n")),
        ("mac.csv", PAIRS.replace("\n", "\r")),
        ("bom.csv", b"\xef\xbb\xbf" + PAIRS.encode()),
        ("no_end.csv", PAIRS.rstrip("\n")),
        ("empty_lines.csv", PAIRS.replace("\n", "\n\n")),
        ("quoted.csv", "".join(f'"{line.replace(",", chr(34) + "," + chr(34))}"\n' for line in PAIRS.split())),
        ("packed.csv.gz", gzip.compress(PAIRS.encode(), mtime=0)),
        ("header.csv", "source,target\n" + PAIRS),
        ("blank_after.csv", PAIRS.replace(",", ", ")),
    ],
)
def test_edges_however_they_are_written(tmp_path, name, content) -> None:
    summary, store = read(tmp_path, {name: content})
    assert (summary.nodes, summary.edges, summary.ids) == (4, 4, "int")
    assert store.indices.tolist() == [3, 0, 1, 2]


def test_arrays_say_what_they_leave_out_and_what_minus_one_is(tmp_path) -> None:
    np.savez(
        tmp_path / "g.npz", edge_index=np.array([[0, 1, 2], [1, 2, 0]]), x=np.ones((3, 2)), y=np.array([0, -1, 1]),
        edge_type=np.ones(3), timestamps=np.ones(3),
    )  # fmt: skip
    summary = ingest(tmp_path / "g.npz", tmp_path / "store")
    assert summary.class_sizes == {"0": 1, "1": 1}
    notes = "\n".join(summary.notes)
    assert "not used: edge_type (relation types), timestamps" in notes
    assert "1 nodes with the label -1 have none; --unlabeled none if -1 is a class" in notes


def test_wide_features_of_zeros_say_how_large_they_are(tmp_path) -> None:
    x = np.zeros((40, 1500), np.float32)
    x[np.arange(40), np.arange(40)] = 1
    summary = ingest((np.arange(40), np.roll(np.arange(40), 1)), tmp_path / "store", features=x)
    assert any("1,500 features, 99.9% of them 0, take 234.4 KiB" in note for note in summary.notes)
    assert any("--feature-dtype float16 halves them" in note for note in summary.notes)
