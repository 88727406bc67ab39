"""What is recorded of a model of links, beside plain loops over the scores of all pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typed_graphs import typed_store

import partita
from partita.comm.context import Context
from partita.core.files import ANALYSIS
from partita.graph.split_links import split_links
from partita.graph.store import GraphStore
from partita.infer import link_analysis
from partita.infer.link_analysis import LinkOutcome, rank_histogram, score_histogram
from partita.infer.links import NodeRows, no_edges
from partita.infer.run import inference_of
from partita.runs.load import load_run
from partita.tasks.links.task import LinkTask
from partita.testing.graphs import small_random_store

SETTINGS = {
    "task": "links", "epochs": 2, "layers": 1, "hidden": 6, "fanout": 4, "negatives": 2, "batch_size": 64, "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module", params=["untyped", "typed"])
def run(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "typed":
        typed_store(folder / "store")
        whole = GraphStore.open(folder / "store.whole")
        split_links(whole, folder / "split", val=0.1, test=0.3)
        settings = {**SETTINGS, "model": "rgcn", "decoder": "distmult"}
    else:
        split_links(small_random_store(folder / "whole", 120, 700), folder / "split", val=0.1, test=0.2)
        settings = SETTINGS
    partita.Trainer(folder / "split", out=folder / "run", **settings).fit(progress=False)
    return folder / "run"


def recorded(run: Path) -> dict:
    return json.loads((run / ANALYSIS).read_text())


def everything(run: Path):
    """Links of the test split, scores of all pairs by relation, and which are known edges."""
    loaded = load_run(run)
    store, model = loaded.store, loaded.model
    rows = NodeRows.of(inference_of(model, store, loaded.config, Context.alone())).rows
    number = 1 if store.schema is None else len(store.schema.relations)
    with torch.no_grad():
        scores = torch.stack(
            [
                torch.stack([model.decoder(head.expand_as(rows), rows, torch.full((len(rows),), at)) for head in rows])
                for at in range(number)
            ]
        ).numpy()
    target = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    known = np.zeros(scores.shape, dtype=bool)
    known[0 if store.edge_type is None else store.edge_type, store.indices, target] = True
    for split in store.held_out:
        ends, kinds = store.held_out_edges(split)
        known[0 if kinds is None else kinds, ends[0], ends[1]] = True
    ends, kinds = store.held_out_edges("test")
    links = [
        (int(source), int(destination), 0 if kinds is None else int(kinds[at]))
        for at, (source, destination) in enumerate(ends.T)
    ]
    return store, links, scores, known


def ranks_of(store: GraphStore, links, scores, known) -> list[tuple[float, float]]:
    """Of the target and of the source of each; one that scores the same counts half."""
    found = []
    for source, target, kind in links:
        true, pair = scores[kind, source, target], []
        for side, node in (("tail", target), ("head", source)):
            higher = 0.0
            for other in range(store.num_nodes):
                at = (kind, source, other) if side == "tail" else (kind, other, target)
                same_type = store.node_types.of(np.array([other]))[0] == store.node_types.of(np.array([node]))[0]
                if same_type and other != node and not known[at]:
                    equal = abs(scores[at] - true) <= 1e-5 * abs(true) + 1e-6
                    higher += 0.5 if equal else float(scores[at] > true)
            pair.append(1 + higher)
        found.append((pair[0], pair[1]))
    return found


def scored(ranks: list[float]) -> dict[str, float]:
    hits = {f"hits@{k}": sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 3, 10)}
    return {"mrr": sum(1 / rank for rank in ranks) / len(ranks), **hits}


def test_what_is_recorded(run) -> None:
    store, links, scores, known = everything(run)
    ranks = ranks_of(store, links, scores, known)
    found = recorded(run)["splits"]["test"]
    assert found["edges"] == len(links) > 20
    bounds = found["ranks"]["up_to"]
    assert bounds[:7] == [1, 2, 3, 5, 10, 20, 50]
    assert bounds[-1] >= max(map(max, ranks)) > bounds[-2]
    for side, name in enumerate(("tails", "heads")):
        assert found["ranks"][name] == [
            sum(low < pair[side] <= high for pair in ranks) for low, high in zip([0, *bounds], bounds, strict=False)
        ]
    names = None if store.schema is None else store.schema.short_relations
    examples = [
        (*map(str, store.names(np.array(link[:2]))), None if names is None else names[link[2]], *pair)
        for link, pair in zip(links, ranks, strict=True)
    ]
    for name, sign in (("best", 1), ("worst", -1)):
        wanted = sorted(examples, key=lambda each: sign * (each[3] + each[4]))[: min(10, len(links) // 2)]
        keys = ("source", "target", "relation", "tail_rank", "head_rank")
        assert [tuple(each[key] for key in keys) for each in found[name]] == wanted
    columns = [links] if store.schema else [[link[:2] for link in links]]
    pairs = no_edges(store, torch.tensor(columns[0]), "test").numpy()
    others = [scores[pair[2] if len(pair) > 2 else 0, pair[0], pair[1]] for pair in pairs]
    edges = found["scores"]["edges"]
    for name, of in (("links", [scores[kind, a, b] for a, b, kind in links]), ("others", others)):
        clipped = np.clip(of, edges[0], edges[-1])
        assert sum(found["scores"][name]) == len(of)
        lower = [int((clipped < edge).sum()) for edge in edges[1:-1]]
        assert np.abs(np.cumsum(found["scores"][name])[:-1] - lower).max() <= 1  # an edge of six digits
    record = json.loads((run / "run.json").read_text())["metrics"]["test"]
    assert {name: record[name] for name in scored([1])} == pytest.approx(
        scored([rank for pair in ranks for rank in pair])
    )


def test_relations(run) -> None:
    store, links, scores, known = everything(run)
    judged = partita.evaluate(run, split="test")
    if store.schema is None:
        assert "relations" not in judged
        assert recorded(run)["splits"]["test"]["relations"] == []
        return
    ranks: dict[str, list[int]] = {}
    for link, pair in zip(links, ranks_of(store, links, scores, known), strict=True):
        ranks.setdefault(store.schema.relations[link[2]].name, []).extend(pair)
    assert len(ranks) > 1
    for name, of in ranks.items():
        assert judged["relations"][name] == pytest.approx({"edges": len(of) // 2, **scored(of)})
    counts = [of["edges"] for of in judged["relations"].values()]
    assert counts == sorted(counts, reverse=True)
    assert recorded(run)["splits"]["test"]["relations"] == [{"name": n, **of} for n, of in judged["relations"].items()]


def test_several_workers_record_the_same(run, tmp_path) -> None:
    alone = recorded(run)["splits"]["test"]
    (run / ANALYSIS).unlink()
    judged = partita.evaluate(run, split="test", workers=2)
    again = recorded(run)["splits"]["test"]
    scores, rounded = alone.pop("scores"), again.pop("scores")
    assert again == alone
    assert rounded["edges"] == pytest.approx(scores["edges"], rel=1e-4, abs=1e-5)
    assert judged.get("relations") == partita.evaluate(run, split="test").get("relations")


def test_bounds_of_ranks() -> None:
    found = rank_histogram(np.array([[1, 1.5, 3, 3.5], [2, 6, 51, 100.5]]))
    assert found["up_to"] == [1, 2, 3, 5, 10, 20, 50, 100, 200]
    assert found["tails"] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert found["heads"] == [0, 1, 0, 0, 1, 0, 0, 1, 1]


def test_scores_that_are_no_numbers() -> None:
    found = score_histogram(np.array([np.nan, 1.0, 2.0]), np.array([np.inf, 0.0]))
    assert (found["not_finite"], sum(found["links"]), sum(found["others"])) == (2, 2, 1)
    assert score_histogram(np.array([np.nan]), np.array([])) == {}
    same = score_histogram(np.array([2.0, 2.0]), np.array([2.0]))
    assert (sum(same["links"]), sum(same["others"])) == (2, 1)


def test_most_relations_are_one(monkeypatch, tmp_path) -> None:
    """As many as are kept, and what the others come to together."""
    monkeypatch.setattr(link_analysis, "MOST_RELATIONS", 1)
    store = typed_store(tmp_path / "store")
    names = store.schema.short_relations
    links = np.array([[0, 1, 0], [0, 2, 0], [0, 3, 1], [0, 4, 2]])
    ranks = np.array([[1.0, 2.0, 4.0, 1.0], [1.0, 2.0, 20.0, 1.0]])
    outcome = LinkOutcome("test", links, ranks, np.zeros(4), np.zeros(4))
    task = LinkTask(store)
    first, rest = outcome.analyzed(task)["relations"]
    assert first == {"name": names[0], "edges": 2, **scored([1, 2, 1, 2])}
    assert rest == {"name": "2 others", "edges": 2, **scored([4, 1, 20, 1])}
    assert outcome.analyzed(task)["edges"] == 4
    assert LinkOutcome("test", links[:0], ranks[:, :0], np.zeros(0), np.zeros(0)).analyzed(task) == {}
