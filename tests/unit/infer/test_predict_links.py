"""New neighbors and scores of pairs in files, by users' ids: what a decoder says of the model's rows, one by one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from typed_graphs import typed_store

import partita
from partita.cli.main import main
from partita.comm.context import Context
from partita.core.errors import ConfigError, InputError
from partita.graph.store import GraphStore
from partita.infer.links import NodeRows
from partita.infer.predict_links import predict_links
from partita.infer.run import inference_of
from partita.runs.load import load_run

NODES = 40
SETTINGS = {"task": "links", "epochs": 1, "layers": 1, "hidden": 6, "fanout": 4, "negatives": 2, "batch_size": 64}


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> tuple[Path, Path]:
    """An undirected graph with names for nodes, in two parts, edges held out; and a run on it."""
    folder = tmp_path_factory.mktemp("named")
    generator = np.random.default_rng(3)
    pairs = np.unique(np.sort(generator.integers(0, NODES, (160, 2)), axis=1), axis=0)
    pairs = generator.permutation(pairs[pairs[:, 0] != pairs[:, 1]])

    def write(name: str, rows: np.ndarray) -> Path:
        path = folder / name
        path.write_text("source,target\n" + "".join(f"user-{a},user-{b}\n" for a, b in rows))
        return path

    rows = generator.normal(size=(NODES, 3))
    lines = ["id,a,b,c", *(f"user-{v}," + ",".join(f"{value:.4f}" for value in rows[v]) for v in range(NODES))]
    (folder / "nodes.csv").write_text("\n".join(lines) + "\n")
    partita.ingest(
        write("edges.csv", pairs[12:]), folder / "whole", nodes=folder / "nodes.csv", undirected=True,
        val_edges=write("val.csv", pairs[:6]), test_edges=write("test.csv", pairs[6:12]),
    )  # fmt: skip
    partita.partition(folder / "whole", folder / "store", parts=2, algorithm="random")
    partita.Trainer(folder / "store", out=folder / "run", **SETTINGS).fit(progress=False)
    return folder / "store", folder / "run"


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("typed")
    store = typed_store(folder / "store")
    settings = {**SETTINGS, "model": "rgcn", "decoder": "distmult", "target_relations": "wrote at"}
    partita.Trainer(store.path, out=folder / "run", **settings).fit(progress=False)
    return store.path, folder / "run"


def scores_of(run: Path) -> tuple[GraphStore, object]:
    """A function from two store ids and a relation to the score, by the decoder's own formula."""
    loaded = load_run(run)
    rows = NodeRows.of(inference_of(loaded.model, loaded.store, loaded.config, Context.alone())).rows

    @torch.no_grad()
    def score(head: int, tail: int, relation: int) -> float:
        return float(loaded.model.decoder(rows[head][None], rows[tail][None], torch.tensor([relation]))[0])

    return loaded.store, score


def table(path: Path) -> dict[str, list]:
    read = pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table
    return read(path).to_pydict()


def known_of(store: GraphStore) -> set[tuple[int, int, int]]:
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    kinds = np.zeros(len(target)) if store.edge_type is None else store.edge_type
    known = {(int(a), int(b), int(r)) for a, b, r in zip(store.indices, target, kinds, strict=True)}
    for split in store.held_out:
        ends, kinds = store.held_out_edges(split)
        for number, (a, b) in enumerate(ends.T.tolist()):
            known |= {(a, b, 0), (b, a, 0)} if kinds is None else {(a, b, int(kinds[number]))}  # else undirected
    return known


def wanted_of(store, score, nodes, side, relation, candidates, k):
    """Names of nodes and of their best new neighbors, with scores."""
    known, found = known_of(store), []
    original = store.to_original(np.arange(store.num_nodes))
    for node in nodes:
        scored = []
        for other in candidates:
            link = (node, other, relation) if side == "tail" else (other, node, relation)
            if other != node and link not in known:
                scored.append((-score(*link), int(original[other]), int(other)))
        for negated, _, other in sorted(scored)[:k]:
            found.append((store.names(np.array([node]))[0], store.names(np.array([other]))[0], -negated))
    return found


def check(found: dict[str, list], wanted: list[tuple]) -> None:
    assert list(zip(found["node"], found["neighbor"], strict=True)) == [each[:2] for each in wanted]
    np.testing.assert_allclose(found["score"], [each[2] for each in wanted], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["probability"], 1 / (1 + np.exp(-np.array(found["score"]))), rtol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_new_neighbors_by_brute_force(named, tmp_path, suffix) -> None:
    """Of all nodes, in the order of ingest; held-out edges are known in both directions."""
    store, score = scores_of(named[1])
    out = tmp_path / f"new{suffix}"
    summary = predict_links(named[1], links=4, out=out)
    order = store.ingest_order().tolist()
    check(table(out), wanted_of(store, score, order, "tail", 0, range(NODES), 4))
    assert summary.rows == 4 * NODES
    assert summary.columns == ("node", "neighbor", "score", "probability")
    again = tmp_path / f"workers{suffix}"
    predict_links(named[1], links=4, out=again, workers=2)
    check(table(again), wanted_of(store, score, order, "tail", 0, range(NODES), 4))


def test_nodes_in_a_file(named, tmp_path) -> None:
    store, score = scores_of(named[1])
    (tmp_path / "who.csv").write_text("rank,node\n1,user-7\n2,user-3\n3,user-7\n")
    predict_links(named[1], links=2, nodes=tmp_path / "who.csv", out=tmp_path / "new.csv", side="head")
    ids = {name: at for at, name in enumerate(store.names())}
    asked = [ids["user-7"], ids["user-3"], ids["user-7"]]
    check(table(tmp_path / "new.csv"), wanted_of(store, score, asked, "head", 0, range(NODES), 2))
    predict_links(named[1], links=1000, nodes=tmp_path / "who.csv", out=tmp_path / "all.csv")
    check(table(tmp_path / "all.csv"), wanted_of(store, score, asked, "tail", 0, range(NODES), 1000))


@pytest.mark.parametrize("side", ["tail", "head"])
def test_new_neighbors_in_a_typed_graph(typed, tmp_path, side) -> None:
    store, score = scores_of(typed[1])
    predict_links(typed[1], links=3, relation="at", side=side, out=tmp_path / "new.parquet")
    found = table(tmp_path / "new.parquet")
    kinds = ["paper", "place"] if side == "tail" else ["place", "paper"]
    nodes, candidates = (store.nodes_of(kind) for kind in kinds)
    nodes = nodes[np.argsort(store.to_original(nodes))].tolist()
    number = store.schema.relation_numbers("at")[0]
    check(found, wanted_of(store, score, nodes, side, number, candidates.tolist(), 3))
    assert set(found["relation"]) == {"paper:at:place"}


@pytest.mark.parametrize("workers", [1, 2])
def test_scores_of_pairs(named, typed, tmp_path, workers) -> None:
    store, score = scores_of(named[1])
    (tmp_path / "pairs.csv").write_text("source,target\nuser-1,user-2\nuser-39,user-0\nuser-1,user-1\n")
    predict_links(named[1], pairs=tmp_path / "pairs.csv", out=tmp_path / "scores.csv", workers=workers)
    found = table(tmp_path / "scores.csv")
    assert list(zip(found["source"], found["target"], strict=True)) == [
        ("user-1", "user-2"), ("user-39", "user-0"), ("user-1", "user-1")
    ]  # fmt: skip
    ids = {name: at for at, name in enumerate(store.names())}
    wanted = [score(ids[a], ids[b], 0) for a, b in zip(found["source"], found["target"], strict=True)]
    np.testing.assert_allclose(found["score"], wanted, rtol=1e-4, atol=1e-5)
    store, score = scores_of(typed[1])
    at = {name: number for number, name in enumerate(store.names().tolist())}
    author, place, *papers = (int(store.names(store.nodes_of(kind)[n : n + 1])[0])
                              for kind, n in (("author", 0), ("place", 0), ("paper", 1), ("paper", 0)))  # fmt: skip
    text = f"head,relation,tail\n{author},wrote,{papers[0]}\n{papers[1]},at,{place}\n"
    (tmp_path / "triples.csv").write_text(text)
    predict_links(typed[1], pairs=tmp_path / "triples.csv", out=tmp_path / "typed.csv", workers=workers)
    found = table(tmp_path / "typed.csv")
    assert found["relation"] == ["author:wrote:paper", "paper:at:place"]
    numbers = [store.schema.relation_numbers(name)[0] for name in ("wrote", "at")]
    wanted = [score(at[author], at[papers[0]], numbers[0]), score(at[papers[1]], at[place], numbers[1])]
    np.testing.assert_allclose(found["score"], wanted, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_done_is_said(named, typed, tmp_path) -> None:
    out, pairs = tmp_path / "out.csv", tmp_path / "pairs.csv"
    pairs.write_text("source,target\nuser-1,user-2\nuser-1,nobody\n")
    for error, message, options in (
        (ConfigError, "none are given", {}),
        (ConfigError, "both are given", {"links": 1, "pairs": pairs}),
        (ConfigError, "at least 1", {"links": 0}),
        (ConfigError, "cannot write '.txt'", {"links": 1, "out": tmp_path / "new.txt"}),
        (ConfigError, "neither a file nor a split", {"links": 1, "nodes": "nowhere"}),
        (ConfigError, "no relations", {"links": 1, "relation": "at"}),
        (ConfigError, "no end 'middle'", {"links": 1, "side": "middle"}),
        (InputError, r"line 3, column target: there is no node 'nobody'", {"pairs": pairs}),
    ):
        with pytest.raises(error, match=message):
            predict_links(named[1], **{"out": out, **options})
    with pytest.raises(ConfigError, match=r"2 relations are meant.*author:wrote:paper"):
        predict_links(typed[1], links=1, out=out)
    (tmp_path / "two.csv").write_text("source,target\n0,0\n")
    with pytest.raises(ConfigError, match="the pairs have no relation"):
        predict_links(typed[1], pairs=tmp_path / "two.csv", out=out)
    assert not out.exists()


def test_rows_of_nodes(named, tmp_path) -> None:
    """From which links are told: the scalar products of the decoder are theirs. Nothing else is said of nodes."""
    store, score = scores_of(named[1])
    partita.predict(named[1], out=tmp_path / "rows.npy", embeddings=True)
    partita.predict(named[1], out=tmp_path / "rows.parquet", embeddings=True)
    rows = np.load(tmp_path / "rows.npy")
    found = table(tmp_path / "rows.parquet")
    assert list(found) == ["node", "embedding"]
    order = store.ingest_order()
    assert found["node"] == store.names(order).tolist()
    np.testing.assert_array_equal(np.array(found["embedding"], np.float32), rows)
    assert float(rows[3] @ rows[8]) == pytest.approx(score(order[3], order[8], 0), rel=1e-4, abs=1e-5)
    for wanted in ({}, {"probabilities": True, "embeddings": True}):
        with pytest.raises(ConfigError, match=r"has learned links|a node has no probabilities"):
            partita.predict(named[1], out=tmp_path / "no.csv", **wanted)


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> Path:
    """A run on users, items and makers by the users' ids; items have labels and splits, which are nothing to links."""
    folder = tmp_path_factory.mktemp("shop")
    generator = np.random.default_rng(5)
    items = [f"sku {at:02d}" for at in range(12)]  # a blank inside
    splits = ["train", "val", "test"] * 4
    lines = [
        f"{name},{split},{at % 2},{at / 7:.3f}" for at, (name, split) in enumerate(zip(items, splits, strict=True))
    ]
    (folder / "items.csv").write_text("sku,split,kind,price\n" + "\n".join(lines) + "\n")
    bought = sorted({(f"u{generator.integers(20):02d}", items[generator.integers(12)]) for _ in range(150)})
    (folder / "bought.csv").write_text("user,sku\n" + "".join(f"{user},{sku}\n" for user, sku in bought))
    (folder / "made.csv").write_text("maker,sku\n" + "".join(f"m-{at % 3},{name}\n" for at, name in enumerate(items)))
    (folder / "shop.yaml").write_text(
        """
nodes:
  user: {}
  item: {file: items.csv, id: sku, label: kind, split: split}
  maker: {}
edges:
  - {source: user, name: bought, target: item, file: bought.csv, source_column: user, target_column: sku, reverse: true}
  - {source: maker, name: made, target: item, file: made.csv, source_column: maker, target_column: sku, reverse: true}
"""
    )
    partita.ingest(folder / "shop.yaml", folder / "store")
    settings = {**SETTINGS, "model": "rgcn", "target_relations": "bought", "embed": "user=4,maker=4"}
    partita.Trainer(folder / "store", out=folder / "run", **settings).fit(progress=False)
    return folder / "run"


ALONE = [
    "user-3\nuser-5\n", "node\nuser-3\nuser-5\n", " user-3\nuser-5 \n", "node\n\tuser-3 \n\n   \nuser-5\t\n\n",
    "id,x\n user-3 ,1\n  \n\" user-5 \",2\n", "node\r\nuser-3\r\n \r\nuser-5", "# mine\nuser-3\nuser-5\n",
]  # fmt: skip
"""Files that list two users."""


@pytest.mark.parametrize("text", ALONE)
def test_blanks_around_listed_ids_and_blank_lines_are_nothing(named, tmp_path, text) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    predict_links(named[1], links=1, nodes=str(tmp_path / "nodes.csv"), out=tmp_path / "new.csv")
    assert table(tmp_path / "new.csv")["node"] == ["user-3", "user-5"]


def test_listed_ids_may_have_blanks_in_them(shop, tmp_path) -> None:
    """Under a header, in quotes, or beside another column; else it is said what to do."""
    options = {"links": 1, "relation": "bought", "side": "head", "nodes": str(tmp_path / "items.csv")}
    for text in ("node\nsku 03\n sku 05 \n", '"sku 03"\n"sku 05"\n', "sku 03,1\nsku 05,2\n"):
        (tmp_path / "items.csv").write_text(text)
        predict_links(shop, out=tmp_path / "new.csv", **options)
        assert table(tmp_path / "new.csv")["node"] == ["sku 03", "sku 05"]
    (tmp_path / "items.csv").write_text("sku 03\nsku 05\n")
    with pytest.raises(InputError, match=r"items.csv, line 1, column 0: there is no node 'sku'.*Write 'node' above"):
        predict_links(shop, out=tmp_path / "new.csv", **options)


def test_what_lists_no_nodes_is_refused_by_row(named, tmp_path) -> None:
    file = tmp_path / "nodes.csv"
    for text, message in (
        ("node\nuser-3\n\n  \nuser-99\n", r"nodes.csv, line 5, column node: there is no node 'user-99'"),
        ("node,x\nuser-3,1\n,2\n", r"nodes.csv, line 3, column node: there is no node ''"),
        ("node\nuser-3\nuser-5\u00a0\n", r"line 3, column node: there is no node 'user-5\\xa0'.*Take the blanks off"),
        ("node\n", "nodes.csv: lists no nodes"),
        ("node\n  \n\n", "nodes.csv: lists no nodes"),
        ("\n  \n", "nodes.csv: the file holds no data"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            predict_links(named[1], links=1, nodes=str(file), out=tmp_path / "new.csv")
    file = tmp_path / "nodes.parquet"
    pyarrow.parquet.write_table(pa.table({"node": ["user-3", " user-5"]}), file)
    with pytest.raises(InputError, match=r"row 1 .*column node: there is no node ' user-5'.*Take the blanks off"):
        predict_links(named[1], links=1, nodes=str(file), out=tmp_path / "new.csv")
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_all_types_of_nodes(shop, tmp_path, workers) -> None:
    """As PyArrow reads them: a row for every node under the user's id, of one type where it is named."""
    partita.predict(shop, out=tmp_path / "rows.parquet", embeddings=True, workers=workers)
    found = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    width = SETTINGS["hidden"]
    assert found.schema.names == ["node", "type", "embedding"]
    assert found.schema.field("embedding").type == pa.list_(pa.float32(), width)
    assert pa.types.is_string(found.schema.field("type").type)
    loaded = load_run(shop)
    store = loaded.store
    rows = NodeRows.of(inference_of(loaded.model, store, loaded.config, Context.alone())).rows
    wanted = {
        (store.schema.node_types[kind], name): row
        for kind, name, row in zip(
            store.types(np.arange(store.num_nodes)).tolist(), store.names(np.arange(store.num_nodes)), rows, strict=True
        )
    }
    assert sum(kind == "item" for kind, _ in wanted) == 12
    assert {kind for kind, _ in wanted} == {"user", "item", "maker"}
    assert ("item", "sku 03") in wanted
    pairs = list(zip(found["type"].to_pylist(), found["node"].to_pylist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == wanted.keys()
    for pair, row in zip(pairs, found["embedding"].to_pylist(), strict=True):
        np.testing.assert_allclose(row, wanted[pair], rtol=1e-5, atol=1e-6)
    if workers == 1:
        partita.predict(shop, out=tmp_path / "makers.parquet", embeddings=True, node_type="maker")
        makers = pyarrow.parquet.read_table(tmp_path / "makers.parquet")
        assert makers["node"].to_pylist() == ["m-0", "m-1", "m-2"]
        np.testing.assert_allclose(makers["embedding"].to_pylist()[1], wanted["maker", "m-1"], rtol=1e-5, atol=1e-6)


def call(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_command(named, tmp_path, capsys) -> None:
    run, out = named[1], tmp_path / "new.csv"
    code, said, _ = call(capsys, "predict", run, "--links", 2, "--out", out, "--json")
    assert (code, json.loads(said)["rows"]) == (0, 2 * NODES)
    (tmp_path / "pairs.csv").write_text("source,target\nuser-1,user-2\n")
    assert call(capsys, "predict", run, "--pairs", tmp_path / "pairs.csv", "--out", out)[0] == 0
    assert len(table(out)["score"]) == 1
    for options, message in (
        (["--links", "2", "--labels"], "links have no labels"),
        (["--nodes", "train"], "nodes and relations are for links"),
        (["--embeddings", "--probabilities"], "a node has no probabilities"),
        (["--side", "middle", "--links", "2"], "no end 'middle'"),
    ):
        code, _, error = call(capsys, "predict", run, "--out", out, *options)
        assert code == 2
        assert message in error
