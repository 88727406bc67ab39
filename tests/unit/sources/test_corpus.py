"""A corpus of small files as people have them: each is read right, or refused in words, or read with a note."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from partita.core.errors import InputError
from partita.graph.store import GraphStore
from partita.sources.ingest import ingest

NUMBERS = "0,1\n1,2\n2,3\n3,0\n"
NAMES = "anna,bob\nbob,carl\ncarl,dora\ndora,anna\n"
RING = {"0 1", "1 2", "2 3", "3 0"}
NAMED_RING = {"anna bob", "bob carl", "carl dora", "dora anna"}


@dataclass(frozen=True)
class Case:
    """Files, the edges first, and what comes of them.

    Attributes:
        name: of the case.
        files: contents by name; ``nodes.*`` and ``labels.*`` are given as such.
        options: of the ingest.
        edges: as "source target" by the user's ids.
        x: feature rows in the order of the ids.
        classes: how many nodes have which label.
        task: of the labels.
        splits: their sizes.
        note: what one of the notes says.
        refused: what the error says; nothing else counts then.
    """

    name: str
    files: dict[str, str | bytes]
    options: dict[str, Any] = field(default_factory=dict)
    edges: set[str] | None = None
    x: list[list[float]] | None = None
    classes: dict[str, int] | None = None
    task: str | None = None
    splits: dict[str, int] | None = None
    note: str = ""
    refused: str = ""


def edges(name: str, content: str | bytes, found: set[str] | None = None, note: str = "", **options: Any) -> Case:
    return Case(name, {"edges.csv" if "." not in name else name: content}, options, edges=found, note=note)


def refused(name: str, content: str | bytes, message: str, **options: Any) -> Case:
    return Case(name, {"edges.csv" if "." not in name else name: content}, options, refused=message)


def nodes(name: str, table: str | bytes, *, of: str = NUMBERS, **wanted: Any) -> Case:
    options = wanted.pop("options", {})
    return Case(name, {"edges.csv": of, "nodes.csv": table}, options, **wanted)


def column(name: str, cells: str, *, header: str = "id,f,label", **wanted: Any) -> Case:
    rows = [f"{number},1,{cell}\n" for number, cell in enumerate(cells.split(" "))]
    return nodes(name, header + "\n" + "".join(rows), **wanted)


def feature(name: str, cells: str, **wanted: Any) -> Case:
    return column(name, cells, header="id,g,f", **wanted)


CASES = [
    # Separators, ends of lines, comments, packing
    edges("comma", NUMBERS, RING),
    edges("semicolon", NUMBERS.replace(",", ";"), RING),
    edges("tab.tsv", NUMBERS.replace(",", "\t"), RING),
    edges("tabs in a .csv", NUMBERS.replace(",", "\t"), RING),
    edges("bar", NUMBERS.replace(",", "|"), RING),
    edges("blanks.txt", NUMBERS.replace(",", "   "), RING),
    edges("without a suffix", NUMBERS, RING),
    edges("windows", NUMBERS.replace("\n", "\r\n"), RING),
    edges("old mac", NUMBERS.replace("\n", "\r"), RING),
    edges("byte order mark", b"\xef\xbb\xbf" + NUMBERS.encode(), RING),
    edges("no end of the last line", NUMBERS.rstrip("\n"), RING),
    edges("empty lines", NUMBERS.replace("\n", "\n\n"), RING),
    edges("blank after the comma", NUMBERS.replace(",", ", "), RING),
    edges("blanks around names", NAMES.replace(",", " , "), NAMED_RING),
    edges("packed.csv.gz", gzip.compress(NUMBERS.encode(), mtime=0), RING),
    edges("comment of SNAP", "# FromNodeId\tToNodeId\n" + NUMBERS.replace(",", "\t"), RING),
    edges("comment of KONECT", "% asym unweighted\n" + NUMBERS.replace(",", " "), RING),
    edges("comment with strokes", "// pairs\n" + NUMBERS, RING),
    edges("comment between edges", NUMBERS.replace("1,2", "# half\n1,2"), RING),
    edges("comma at the end of lines", NUMBERS.replace("\n", ",\n"), RING, note="1 column not used: 2"),
    # Names of columns
    edges("header of numbers", "source,target\n" + NUMBERS, RING),
    edges("header above names", "user_a,user_b\n" + NAMES, NAMED_RING, note="taken as the names of columns"),
    edges("names without a header", NAMES, NAMED_RING, note="taken as data"),
    edges("words for columns as an edge", "head,neck\nneck,arm\narm,head\n", {"head neck", "neck arm", "arm head"}),
    edges("target first", "target,source\n1,0\n2,1\n3,2\n0,3\n", RING, note="from column source to column target"),
    edges("dst and src", "dst,src\n1,0\n2,1\n3,2\n0,3\n", RING, note="from column src to column dst"),
    edges("id of the edge first", "id,source,target\n7,0,1\n8,1,2\n9,2,3\n10,3,0\n", RING, note="not used: id"),
    edges("index of a data frame", ",source,target\n0,0,1\n1,1,2\n2,2,3\n3,3,0\n", RING, note="(without a name)"),
    edges("type of the ends between", "source_id,source_type,target_id\n0,1,1\n1,1,2\n2,1,3\n3,1,0\n", RING),
    edges("camel case", "weight,fromNodeId,toNodeId\n1,0,1\n1,1,2\n1,2,3\n1,3,0\n", RING, note="not used: weight"),
    edges("columns that say nothing", "time,user,item\n5,0,1\n6,1,2\n", None, note="from column time to column user"),
    edges("three columns of numbers", "5,0,1\n6,1,2\n", None, note="from column 0 to column 1"),
    edges("named ends", "t,u,i\n5,0,1\n6,1,2\n7,2,3\n8,3,0\n", RING, source_column="u", target_column="i"),
    edges("weights not asked for", "source,target,weight\n0,1,2\n1,2,2\n2,3,1\n3,0,1\n", RING, note="not used: weight"),
    edges("comments among the rows", "0,1\n1,2\n# half of it\n2,3\n3,0\n", RING, note="1 line among the rows begins"),
    edges("comments above the rows", "# a graph\n# of four\n" + NUMBERS, RING),
    # Ids
    edges("hexadecimal ids", "0x10,53\n16,53\n", {"0x10 53", "16 53"}),
    refused("hexadecimal ids as integers", "0x10,53\n16,53\n", "'0x10' is not an integer", ids="int"),
    edges("zeros before ids", "007,7\n7,008\n", {"007 7", "7 008"}),
    edges("postal codes", "02139,10001\n10001,02139\n", {"02139 10001", "10001 02139"}),
    edges("integers as decimals", "0.0,1.0\n1.0,0.0\n", {"0.0 1.0", "1.0 0.0"}, note="are no integers"),
    edges("exponents", "1e3,2e3\n2e3,1e3\n", {"1e3 2e3", "2e3 1e3"}, note="are no integers"),
    edges("more than 64 bits", "12345678901234567890,2\n2,3\n", {"12345678901234567890 2", "2 3"}, note="are names"),
    edges("thousands", '"1,000",2\n2,"1,000"\n', {"1,000 2", "2 1,000"}),
    edges("integers and names", "1,2\n2,u3\n", {"1 2", "2 u3"}),
    edges("hexadecimal", "0x1f,0x2a\n0x2a,0x1f\n", {"0x1f 0x2a", "0x2a 0x1f"}),
    edges("other scripts", "Müller,東京\n東京,Žižek\n", {"Müller 東京", "東京 Žižek"}),
    edges("case counts", "Anna,bob\nbob,anna\n", {"Anna bob", "bob anna"}),
    edges("gaps in integers", "5,900\n900,70\n", {"5 900", "900 70"}),
    refused("negative ids", "-1,2\n2,-1\n", r"line 1, column 0: id -1 is negative.*ids=str"),
    # Both directions, repeats
    edges("both directions", "0,1\n1,0\n1,2\n2,1\n", {"0 1", "1 0", "1 2", "2 1"}, "both directions", undirected=True),
    edges("one direction", NUMBERS, RING, note="taken as directed"),
    edges("other directions added", "0,1\n1,2\n", {"0 1", "1 0", "1 2", "2 1"}, undirected=True),
    # What is no table of edges
    refused("one column", "0\n1\n", "has one column, but edges need two"),
    refused("a line too short", "0,1\n1\n2,3\n", "line 2: the line has 1 cell, but the table has 2 columns"),
    refused("a line too long", "0,1\n1,2,3\n2,3\n", "line 2: the line has 3 cells"),
    refused("neighbors.txt", "0 1 2 3\n1 2\n2 3 0\n", "line 2: the line has 2 cells"),
    refused("empty", "", "holds no data"),
    refused("only a header", "source,target\n", "there are no nodes"),
    refused("latin-1", "Müller,Bob\nBob,Müller\n".encode("latin-1"), "line 1, column 0: .* is not UTF-8 text"),
    refused("utf-16", NAMES.encode("utf-16"), "is not a text file in UTF-8"),
    refused("matrix.mtx", "%%MatrixMarket matrix coordinate\n2 2 1\n1 2\n", r"scipy\.io\.mmread"),
    refused("a matrix in a.txt2", "%%MatrixMarket matrix coordinate\n2 2 1\n1 2\n", "which is not read"),
    refused("graph.graphml", "<?xml version='1.0'?>\n<graphml/>\n", "networkx"),
    refused("graph.gml", "graph [\n node [ id 0 ]\n]\n", "networkx"),
    refused("graph.json", "[[0,1],[1,2]]", "pandas"),
    refused("graph.jsonl", '{"source":0,"target":1}\n', "pandas"),
    refused("graph.xlsx", b"PK\x03\x04", "pandas"),
    refused("graph.pt", b"PK\x03\x04", "pickles run any code"),
    refused("edges.csv.zip", b"PK\x03\x04", r"is packed as \.zip, which is not read; gzip is"),
    # Tables of nodes
    nodes("ids first", "id,f\n0,5\n1,6\n2,7\n3,8\n", x=[[5], [6], [7], [8]]),
    nodes("ids last", "f,label,id\n5,a,3\n6,b,2\n7,a,1\n8,b,0\n", x=[[8], [7], [6], [5]], note="are in column id"),
    nodes("ids by an ending", "age,user_id\n5,3\n6,2\n7,1\n8,0\n", x=[[8], [7], [6], [5]], note="in column user_id"),
    nodes("no names of columns", "0,5\n1,6\n2,7\n3,8\n", x=[[5], [6], [7], [8]]),
    nodes("index before ids", ",id,f\n0,3,5\n1,2,6\n2,1,7\n3,0,8\n", x=[[8], [7], [6], [5]], note="(without a name)"),
    nodes("index as ids", ",f\n0,5\n1,6\n2,7\n3,8\n", x=[[5], [6], [7], [8]]),
    nodes("decimal commas", "id;f\n0;0,5\n1;1,5\n2;2\n3;0,25\n", x=[[0.5], [1.5], [2], [0.25]]),
    nodes("True and False", "id,f\n0,True\n1,False\n2,True\n3,False\n", x=[[1], [0], [1], [0]]),
    nodes("a row without edges", "id,f\n0,5\n1,6\n2,7\n3,8\n9,1\n", x=[[5], [6], [7], [8], [1]]),
    nodes("a row too few", "id,f\n0,5\n1,6\n2,7\n", refused=r"1 node\(s\) of the edges .*: 3 .*in column id"),
    nodes("ids elsewhere", "age,f\n5,1\n6,1\n7,2\n8,2\n", refused=r"4 node\(s\) .* in column age.*--missing"),
    nodes("a row twice", "id,f\n0,5\n0,6\n1,6\n2,7\n3,1\n", refused="line 3, column id: node 0 has a row already"),
    nodes("words", "id,f\n0,red\n1,blue\n2,red\n3,red\n", refused="words, not numbers: f. Give --categorical f"),
    nodes("dates", "id,f\n0,2001-01-01\n1,2001-01-02\n2,2001-01-02\n3,2001-01-02\n", refused="words, not numbers: f"),
    feature("an empty cell", "1  2 3", refused="line 3, column f: the cell is empty.*--missing zero or mean"),
    feature("an empty cell as zero", "1  2 3", options={"missing": "zero"}, x=[[1, 1], [1, 0], [1, 2], [1, 3]]),
    feature("NA", "1 NA 2 3", refused="line 3, column f: the cell is empty"),
    feature("infinite", "1 inf 2 3", refused="feature 1 of node 1 is inf, which is not finite"),
    nodes("names of Cora", "0\t0\t1\tNets\n1\t1\t0\tRules\n2\t1\t1\tNets\n3\t0\t0\tNets\n", options={"label_column": 3},
          of=NUMBERS.replace(",", " "), x=[[0, 1], [1, 0], [1, 1], [0, 0]], classes={"Nets": 3, "Rules": 1}),
    # Labels
    column("integers", "0 1 1 0", task="classes", classes={"0": 2, "1": 2}),
    column("decimals", "0.0 1.0 1.0 0.0", task="classes", classes={"0": 2, "1": 2}, note="taken as classes"),
    column("codes", "100001 100002 100001 100001", classes={"100001": 3, "100002": 1}, note="are codes"),
    column("from one", "1 2 3 1", task="classes", classes={"1": 2, "2": 1, "3": 1}, note="are codes of 3 classes"),
    column("words as classes", "x y x x", task="classes", classes={"x": 3, "y": 1}),
    column("amounts", "0.5 1.5 2.25 1", task="regression"),
    column("one is lacking", "0 1  1", task="classes", classes={"0": 1, "1": 2}),
    column("nan among integers", "nan 0 1 1", task="regression", note="--task classes if they are classes"),
    column("minus one", "-1 1 1 -1", refused="2 nodes have the label -1.*--unlabeled none if it is a class"),
    column("minus one for none", "-1 1 0 -1", options={"unlabeled": "-1"}, classes={"0": 1, "1": 1}),
    column("a question mark", "? a b a", classes={"?": 1, "a": 2, "b": 1}, note="the label '?' is a class"),
    column("unknown", "unknown a b a", classes={"a": 2, "b": 1, "unknown": 1}, note="--unlabeled 'unknown'"),
    column("NA as a word", "NA a b a", classes={"NA": 1, "a": 2, "b": 1}, note="the label 'NA' is a class"),
    Case("a label for each node", {"edges.csv": "".join(f"{n},{n + 1}\n" for n in range(99)),
         "nodes.csv": "id,f,label\n" + "".join(f"{n},1,{7 * n}\n" for n in range(100))}, note="--task regression if"),
    Case("labels with names of columns", {"edges.csv": "user,friend\n" + NAMES,
         "labels.csv": "user,segment\nanna,x\nbob,y\ncarl,x\ndora,y\n"}, classes={"x": 2, "y": 2}, edges=NAMED_RING),
    # Splits
    column("words of splits", "training validation testing train", header="id,f,split",
           splits={"train": 2, "val": 1, "test": 1}),
    nodes("masks", "id,f,label,train_mask,val_mask,test_mask\n0,1,a,1,0,0\n1,1,b,0,1,0\n2,1,a,0,0,1\n3,1,b,True,0,0\n",
          x=[[1], [1], [1], [1]], splits={"train": 2, "val": 1, "test": 1}),
    nodes("a node in two masks", "id,f,label,train_mask,test_mask\n0,1,a,1,1\n1,1,b,0,1\n2,1,a,0,1\n3,1,b,1,0\n",
          refused="line 2, column test_mask: the node is in another split too"),
    column("numbers of splits", "0 1 2 0", header="id,f,split", refused="there is no split '0'"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(tmp_path, case) -> None:
    paths = {}
    for name, content in case.files.items():
        paths[name] = tmp_path / name
        paths[name].write_bytes(content if isinstance(content, bytes) else content.encode())
    source, *others = paths.values()
    options = {**case.options, **{path.stem: path for path in others}}
    if case.refused:
        with pytest.raises(InputError, match=case.refused):
            ingest(source, tmp_path / "store", **options)
        return
    summary = ingest(source, tmp_path / "store", **options)
    store = GraphStore.open(tmp_path / "store")
    names = [str(name) for name in store.names()]
    if case.edges is not None:
        targets = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
        assert {f"{names[s]} {names[t]}" for s, t in zip(store.indices, targets)} == case.edges
    if case.x is not None:
        assert store.x.tolist() == case.x
    if case.classes is not None:
        assert summary.class_sizes == case.classes
    if case.task is not None:
        assert summary.task == case.task
    if case.splits is not None:
        assert summary.splits == case.splits
    assert any(case.note in note for note in summary.notes) or not case.note
