"""Ranks of links in a file among the nodes that it gives for their ends, by the scores that ``predict`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
from typed_graphs import typed_store

import partita
from partita.cli.main import main
from partita.core.errors import ConfigError, InputError
from partita.graph.store import GraphStore
from partita.testing.graphs import small_random_store

SETTINGS = {"task": "links", "epochs": 1, "layers": 1, "hidden": 6, "fanout": 4, "batch_size": 64, "threads": 1}
SIDES = {"target_candidates": "target", "source_candidates": "source"}


@pytest.fixture(scope="module")
def typed(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("typed")
    store = typed_store(folder / "store")
    partita.split_links(store, folder / "known", val=0.1, test=0.2)
    partita.Trainer(folder / "known", out=folder / "run", model="rgcn", **SETTINGS).fit(progress=False)
    return folder / "known", folder / "run"


@pytest.fixture(scope="module")
def untyped(tmp_path_factory) -> tuple[Path, Path]:
    """One whose nodes have text for ids."""
    folder = tmp_path_factory.mktemp("untyped")
    edges = np.random.default_rng(0).integers(0, 30, (90, 2))
    lines = ["source,target", *(f"n{a},n{b}" for a, b in edges)]
    (folder / "edges.csv").write_text("\n".join(lines) + "\n")
    partita.ingest(folder / "edges.csv", folder / "store")
    settings = {**SETTINGS, "model": "none", "held_out": "0.1,0.1"}
    partita.Trainer(folder / "store", out=folder / "run", **settings).fit(progress=False)
    return folder / "store.links", folder / "run"


def scores(run: Path, arrays: dict[str, np.ndarray], folder: Path) -> np.ndarray:
    lines = [",".join(arrays)]
    lines += [",".join(map(str, row)) for row in zip(*arrays.values(), strict=True)]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    partita.predict_links(run, pairs=folder / "pairs.csv", out=folder / "scores.csv")
    return pyarrow.csv.read_csv(folder / "scores.csv")["score"].to_numpy()


def ranks_of(run: Path, arrays: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """By the file's formula, one side after the other."""
    links = {name: array for name, array in arrays.items() if name not in SIDES}
    true, found = scores(run, links, folder), {}
    for name, end in SIDES.items():
        if name not in arrays:
            continue
        given = arrays[name]
        pairs = {key: np.repeat(array, given.shape[1]) for key, array in links.items()}
        others = scores(run, {**pairs, end: given.ravel()}, folder).reshape(given.shape)
        counts = given != links[end][:, None]
        equal = np.isclose(others, true[:, None], rtol=1e-5, atol=1e-6)
        higher = (others > true[:, None]) & ~equal & counts
        found[name] = 1 + higher.sum(1) + (equal & counts).sum(1) / 2
    return found


def links_of(store: GraphStore) -> dict[str, np.ndarray]:
    ends, kinds = store.held_out_edges("test")
    found = {name: np.array(store.names(of).tolist()) for name, of in zip(("source", "target"), ends)}
    if kinds is not None:
        assert store.schema is not None
        found["relation"] = np.array([str(store.schema.relations[at]) for at in kinds])
    return found


def of_typed(path: Path) -> dict[str, np.ndarray]:
    """Test edges of all relations, with candidates of the types of their ends, some of which are the ends."""
    store, generator = GraphStore.open(path), np.random.default_rng(1)
    links = links_of(store)
    by_type = [np.array(store.names(store.node_types.ids(at, np.arange(store.node_types.size(at))))) for at in range(3)]
    kinds = [store.schema.relation_numbers(name)[0] for name in links["relation"]]
    for name, end in (("target_candidates", 1), ("source_candidates", 0)):
        links[name] = np.stack([generator.choice(by_type[store.schema.ends[kind, end]], 7) for kind in kinds])
    return links


@pytest.mark.parametrize("side", ["both", "target_candidates", "source_candidates"])
def test_of_typed_graphs(typed, tmp_path, side) -> None:
    arrays = of_typed(typed[0])
    arrays = {name: array for name, array in arrays.items() if side == "both" or name not in SIDES or name == side}
    np.savez(tmp_path / "given.npz", **arrays)
    wanted = ranks_of(typed[1], arrays, tmp_path)
    one, two = (partita.evaluate(typed[1], candidates=tmp_path / "given.npz", workers=number) for number in (1, 2))
    ranks = np.concatenate(list(wanted.values()))
    assert one["edges"] == len(arrays["source"])
    assert one["candidates"] == "given"
    assert "split" not in one
    assert one["mrr"] == pytest.approx((1 / ranks).mean())
    assert one["hits@3"] == pytest.approx((ranks <= 3).mean())
    assert 0 < one["hits@1"] < one["hits@3"] < 1
    names = arrays["relation"]
    assert sum(of["edges"] for of in one["relations"].values()) == len(names)
    for name, of in one["relations"].items():
        here = np.array([name in relation for relation in names])
        assert of["edges"] == here.sum()
        assert of["mrr"] == pytest.approx(np.mean([1 / each[here] for each in wanted.values()]))
    relations = one.pop("relations"), two.pop("relations")
    assert one == pytest.approx(two)
    assert relations[0].keys() == relations[1].keys()


def test_of_text_ids_many_at_once(untyped, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("partita.infer.given_candidates._TOGETHER", 8)
    generator = np.random.default_rng(2)
    arrays = links_of(GraphStore.open(untyped[0]))
    arrays["target_candidates"] = generator.choice([f"n{v}" for v in range(20)], (len(arrays["source"]), 5))
    np.savez(tmp_path / "given.npz", **arrays)
    ranks = ranks_of(untyped[1], arrays, tmp_path)["target_candidates"]
    found = partita.evaluate(untyped[1], candidates=tmp_path / "given.npz")
    assert found["mrr"] == pytest.approx((1 / ranks).mean())
    assert "relations" not in found


def test_one_relation_needs_no_name(tmp_path) -> None:
    store = typed_store(tmp_path / "store")
    settings = {**SETTINGS, "model": "none", "target_relations": "likes"}
    partita.split_links(store, tmp_path / "known", val=0.1, test=0.2, relations="likes")
    partita.Trainer(tmp_path / "known", out=tmp_path / "run", **settings).fit(progress=False)
    arrays = of_typed(tmp_path / "known")
    np.savez(tmp_path / "named.npz", **arrays)
    del arrays["relation"]
    np.savez(tmp_path / "given.npz", **arrays)
    found = [partita.evaluate(tmp_path / "run", candidates=tmp_path / f"{name}.npz") for name in ("named", "given")]
    assert found[0] == found[1]
    assert list(found[0]["relations"]) == ["likes"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": None}, "has no array 'source'"),
        ({"target_candidates": None, "source_candidates": None}, "has no candidates"),
        ({"target": np.arange(3)}, r"array 'target': has 3 rows, where 'source' has"),
        ({"source_candidates": np.zeros((2, 2), int)}, "array 'source_candidates': has 2 rows"),
        ({"target_candidates": np.arange(5)}, r"needed: .* with 2 dimension"),
        ({"source": "a"}, "holds text, and ids of this graph are integers"),
        ({"relation": None}, "no array has their relations"),
        ({"relation": np.array(["wrote"])}, "array 'relation': has 1 rows"),
        ({"relation": "read"}, "there is no relation 'read'"),
        ({"target_candidates": 1234567}, "row 0: there is no node 1234567 of type '"),
        ({"source": np.empty(0, int)}, "has no links"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(typed, tmp_path, change, said) -> None:
    arrays = {**of_typed(typed[0]), **change}
    for name, value in change.items():
        if isinstance(value, (int, str)):
            arrays[name] = np.full(of_typed(typed[0])[name].shape, value)
    np.savez(tmp_path / "given.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises((InputError, ConfigError), match=said) as caught:
        partita.evaluate(typed[1], candidates=tmp_path / "given.npz")
    assert "given.npz" in str(caught.value)


def test_where_there_is_nothing_to_rank(typed, tmp_path) -> None:
    np.savez(tmp_path / "given.npz", **of_typed(typed[0]))
    with pytest.raises(ConfigError, match="candidates are given, and others sampled"):
        partita.evaluate(typed[1], candidates=tmp_path / "given.npz", eval_negatives=5)
    with pytest.raises(ConfigError, match="split: the links that are judged are those of the file"):
        partita.evaluate(typed[1], candidates=tmp_path / "given.npz", split="val")
    store = small_random_store(tmp_path / "g", 60, 200, num_classes=3)
    partita.Trainer(store, out=tmp_path / "run", layers=1, epochs=1).fit(progress=False)
    with pytest.raises(ConfigError, match="candidates: only links have negatives"):
        partita.evaluate(tmp_path / "run", candidates=tmp_path / "given.npz")
    with pytest.raises(InputError, match="missing"):
        partita.evaluate(typed[1], candidates=tmp_path / "missing.npz")


def test_the_command(typed, tmp_path, capsys) -> None:
    np.savez(tmp_path / "given.npz", **of_typed(typed[0]))
    for words in (["--json"], []):
        with pytest.raises(SystemExit):
            main(["evaluate", str(typed[1]), "--candidates", str(tmp_path / "given.npz"), *words])
        out = capsys.readouterr().out
        if words:
            assert json.loads(out)["candidates"] == "given"
        else:
            assert "given.npz" in out
            assert "likes" in out
