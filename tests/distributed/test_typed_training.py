"""Whole runs on typed graphs: the model of one worker, whatever the strategy; resumed, evaluated, predicted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from on_workers import train_on_workers
from safetensors.numpy import load_file
from typed_graphs import TYPES, typed_store

import partita
from partita.core.errors import ConfigError, PartitaError, RunError
from partita.graph.generate_typed import generate_typed
from partita.testing.graphs import small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {
    "layers": 2, "hidden": 8, "fanout": "cites=3,2 *=2,2", "batch_size": 30, "epochs": 3, "precision": "float64",
    "input_dropout": 0.1,
}  # fmt: skip
CASES = [("snp", 2, "rgcn"), ("gsplit", 3, "hgt"), ("dnp", 2, "rgat"), ("gdp", 2, "hetero-sage"), ("snp", 3, "sage")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    for parts in (2, 3):
        typed_store(folder / f"parts{parts}", 240, parts=parts)
    for kind in {kind for *_, kind in CASES}:
        partita.Trainer(folder / "parts2.whole", out=folder / kind, model=kind, **SETTINGS).fit()
    return folder


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(max((run / "checkpoints").glob("epoch-*")) / "model.safetensors")


def assert_same(run: Path, other: Path) -> None:
    found, expected = weights(run), weights(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-9 * np.abs(value).max(), name


@pytest.mark.parametrize("workers", [2, 3])
def test_any_strategy_trains_the_model_of_one_worker(folder, tmp_path, workers) -> None:
    cases = [(strategy, kind) for strategy, number, kind in CASES if number == workers]
    runs = {
        tmp_path / f"{strategy}-{kind}": {**SETTINGS, "strategy": strategy, "model": kind} for strategy, kind in cases
    }
    train_on_workers(folder / f"parts{workers}", workers, runs)
    for run, (_, kind) in zip(runs, cases, strict=True):
        assert_same(run, folder / kind)


def test_workers_that_draw_for_their_own_nodes_only_train_the_same_model(folder, tmp_path) -> None:
    """Of a whole store: owners draw by relation, and relations travel with the edges."""
    cases = [("gdp", "hetero-sage"), ("snp", "rgcn"), ("gsplit", "hgt")]
    runs = {
        tmp_path / kind: {**SETTINGS, "strategy": strategy, "model": kind, "topology": "partitioned"}
        for strategy, kind in cases
    }
    train_on_workers(folder / "parts2", 2, runs)
    for run, (_, kind) in zip(runs, cases, strict=True):
        assert_same(run, folder / kind)
        record = json.loads((run / "run.json").read_text())
        assert sum(worker["traffic_bytes"]["training"]["ids"]["same_host"] for worker in record["workers"]) > 0


def test_caches_change_nothing_but_where_rows_come_from(folder, tmp_path) -> None:
    """A cache that holds all rows gives all; smaller ones some; the runs are the same."""
    settings = {**SETTINGS, "strategy": "dnp", "model": "rgat"}
    cases = {"all": ("1MiB", "in-degree", "own"), "some": ("1KiB", "presample", "own"),
             "shared": ("1KiB", "strategy", "partitioned")}  # fmt: skip
    runs = {tmp_path / "none": settings} | {
        tmp_path / name: {**settings, "cache": size, "cache_policy": policy, "cache_layout": layout}
        for name, (size, policy, layout) in cases.items()
    }
    train_on_workers(folder / "parts2", 2, runs)
    records = {name: json.loads((tmp_path / name / "run.json").read_text()) for name in ("none", *cases)}
    found = {name: record["counts"]["rows_from"] for name, record in records.items()}
    for name in cases:
        assert_same(tmp_path / name, folder / "rgat")
        assert records[name]["counts"]["sampled_edges"] == records["none"]["counts"]["sampled_edges"]
    assert found["all"]["host"] < found["all"]["cache"]  # only rows without in-edges have no score
    assert found["none"]["cache"] == 0 < found["some"]["cache"] < sum(found["none"].values())
    assert found["shared"]["cache"] > 0


def test_layers_drawn_as_a_whole_train_the_model_of_one_worker(folder, tmp_path) -> None:
    settings = {**SETTINGS, "sampler": "layer", "layer_budget": "cites=40,60 *=30", "model": "rgcn"}
    del settings["fanout"]
    partita.Trainer(folder / "parts2.whole", out=tmp_path / "alone", **settings).fit()
    both = {"topology": "partitioned", "strategy": "snp", **settings}
    train_on_workers(folder / "parts2", 2, {tmp_path / "both": both})
    assert_same(tmp_path / "both", tmp_path / "alone")


def test_a_store_that_is_not_partitioned_is_dealt_out(folder, tmp_path) -> None:
    run = {tmp_path / "run": {**SETTINGS, "strategy": "snp", "model": "rgcn"}}
    train_on_workers(folder / "parts2.whole", 2, run)
    assert_same(tmp_path / "run", folder / "rgcn")


def test_a_run_goes_on_where_it_stopped(folder, tmp_path) -> None:
    first = {**SETTINGS, "epochs": 1}
    partita.Trainer(folder / "parts2.whole", out=tmp_path / "run", model="hgt", **first).fit()
    partita.Trainer.resume(tmp_path / "run", epochs=3).fit()
    assert_same(tmp_path / "run", folder / "hgt")


def test_evaluation_does_not_depend_on_workers_or_memory(folder) -> None:
    found = [
        partita.evaluate(folder / "hgt", split="test", **options)
        for options in ({}, {"workers": 2}, {"memory_limit": "1MiB"}, {"store": folder / "parts3"})
    ]
    for other in found[1:]:
        assert {name: found[0][name] for name in ("nodes", "accuracy")}.items() <= other.items()
        assert other["loss"] == pytest.approx(found[0]["loss"], rel=1e-9)


def test_predictions_are_of_the_labeled_types_and_of_others_on_request(folder, tmp_path) -> None:
    store = partita.open(folder / "parts2.whole")
    partita.predict(folder / "rgcn", out=tmp_path / "all.csv")
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert {row["type"] for row in rows} == {"paper"}
    assert [int(row["node"]) for row in rows] == store.nodes_of("paper").tolist()
    for name in TYPES:
        found = partita.predict(folder / "rgcn", node_type=name, embeddings=True)
        assert found.ids.tolist() == store.nodes_of(name).tolist()
        assert found.embeddings.shape == (len(found.ids), 8)
    with pytest.raises(ConfigError, match="no node type 'papers'"):
        partita.predict(folder / "rgcn", node_type="papers")
    with pytest.raises(ConfigError, match="both given"):
        partita.predict(folder / "rgcn", node_type="paper", split="test")


def test_what_no_layer_reaches_is_said(folder, tmp_path) -> None:
    one = {**SETTINGS, "fanout": "3", "layers": 1, "epochs": 1}
    partita.Trainer(folder / "parts2.whole", out=tmp_path / "run", model="rgcn", **one).fit()
    said = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert (
        "node types that 1 layer does not reach from seeds of type 'paper', so nothing is learned of them: place"
        in said
    )


MODULES = {"typed_modules:Mixed": "gdp", "typed_modules:hetero_edges": "gdp", "pyg:SAGEConv": "dnp"}


@pytest.mark.parametrize("name", MODULES)
def test_models_of_pyg_are_trained_resumed_evaluated_and_predicted_by_name(folder, tmp_path, name) -> None:
    settings = {**SETTINGS, "model": name, "dropout": 0.0, "threads": 1}
    whole = partita.Trainer(folder / "parts2.whole", out=tmp_path / "whole", **settings).fit()
    partita.Trainer(folder / "parts2.whole", out=tmp_path / "cut", **{**settings, "epochs": 2}).fit()
    partita.Trainer.resume(tmp_path / "cut", epochs=3, trust="imports").fit()
    first, second = (weights(tmp_path / run) for run in ("whole", "cut"))
    assert all(np.array_equal(second[each], value) for each, value in first.items())
    train_on_workers(folder / "parts2", 2, {tmp_path / "two": {**settings, "strategy": MODULES[name]}})
    assert_same(tmp_path / "two", tmp_path / "whole")
    found = partita.evaluate(tmp_path / "whole", trust="imports")
    assert found["accuracy"] == pytest.approx(whole.record["metrics"]["test"]["accuracy"])
    rows = partita.predict(tmp_path / "whole", split="test", labels=True, trust="imports")
    assert found["accuracy"] == pytest.approx(float(np.mean(rows.predicted == rows.labels)))
    other = partita.predict(tmp_path / "two", store=folder / "parts3", split="test", trust="imports")
    np.testing.assert_allclose(other.probabilities, rows.probabilities, rtol=1e-6, atol=1e-9)


def test_a_model_of_pyg_as_an_object(folder, tmp_path) -> None:
    import typed_modules

    store = partita.open(folder / "parts2.whole")
    model = typed_modules.hetero_gat(store.schema.metadata, 8, 2)
    partita.Trainer(store, out=tmp_path / "run", model=model, fanout=(3, 2), epochs=1, batch_size=30).fit()
    assert "accuracy" in partita.evaluate(tmp_path / "run", model=model)


@pytest.mark.parametrize(
    "settings", [{"model": "mlp"}, {"residual": True, "replace": True}, {"normalize_features": True}]
)
def test_other_settings_work_on_types(folder, tmp_path, settings) -> None:
    run = partita.Trainer(folder / "parts2", out=tmp_path / "run", **{**SETTINGS, "model": "rgcn", **settings}).fit()
    assert np.isfinite(run.record["metrics"]["test"]["loss"])


def test_a_graph_of_another_schema_is_refused(folder, tmp_path) -> None:
    generate_typed(tmp_path / "other", scale=0.001, num_features=8, num_classes=2)
    with pytest.raises(RunError, match=r"other node types.*'paper' of 8 features where.*'paper' of 5"):
        partita.evaluate(folder / "rgcn", store=tmp_path / "other")
    small_random_store(tmp_path / "untyped", 60, 300)
    with pytest.raises(RunError, match=r"is none where there was.*paper"):
        partita.evaluate(folder / "rgcn", store=tmp_path / "untyped")


REFUSED = [
    ({"fanout": "sites=3,2 *=1"}, "no relation 'sites'.*'cites'"),
    ({"fanout": "cites=3,2 cites=1"}, "once"),
    ({"fanout": "cites=3,2 paper:cites:paper=1"}, "is there twice"),
    ({"fanout": "cites=3,2,1"}, "3 entries but layers is 2"),
    ({"fanout": "cites=0"}, "at least one relation"),
    ({"model": "gcn"}, "sampled by relation"),
    ({"model": "pyg:GCN"}, "as models of untyped graphs do.*to_hetero"),
    ({"sampler": "layer", "layer_budget": "sites=9 *=1", "fanout": None}, "no relation 'sites'.*'cites'"),
    ({"sampler": "layer", "layer_budget": "cites=0", "fanout": None}, "layer_budget: at least one relation"),
    ({"sampler": "layer", "layer_budget": "cites=9,8,7", "fanout": None}, "3 entries but layers is 2"),
    ({"sampler": "layer", "layer_budget": "cites=-1", "fanout": None}, "layer_budget cites -1,-1.*>= 0"),
    ({"sampler": "layer", "layer_budget": "cites=1048577", "fanout": None}, "at most 1,048,576 edges"),
    ({"sampler": "layer", "layer_budget": "9", "model": "gcn", "fanout": None}, "sampled by relation"),
    ({"sampler": "walk", "fanout": "5", "model": "sage"}, "along a metapath, and the graph has 5 relations"),
    ({"sampler": "walk", "fanout": "5", "model": "sage", "metapath": "sites"}, "no relation 'sites'.*'cites'"),
    ({"sampler": "walk", "fanout": "5", "model": "sage", "metapath": "wrote cites"}, "leads to 'paper'.*to 'author'"),
    ({"sampler": "walk", "fanout": "5", "metapath": "cites"}, "reads the relations of edges"),
    ({"sampler": "walk", "fanout": "cites=5", "model": "sage", "metapath": "cites"}, "does not draw"),
    ({"metapath": "cites"}, "metapath is for the sampler walk"),
    ({"cache": "30B"}, "no room for a row"),
    ({"views": "cyclic", "model": "typed_modules:Mixed"}, "computed as a whole"),
    ({"model": "rgat", "heads": 3}, "cannot be shared by 3 heads"),
    ({"model": "hetero-sage", "aggregator": "max"}, "mean or sum"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=lambda each: str(each)[:40])
def test_what_is_refused(folder, tmp_path, settings, message) -> None:
    given = {name: value for name, value in {**SETTINGS, "model": "rgcn", **settings}.items() if value is not None}
    with pytest.raises(PartitaError, match=message):
        partita.Trainer(folder / "parts2.whole", out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_relations_are_for_typed_graphs(tmp_path) -> None:
    store = small_random_store(tmp_path / "g", 60, 300)
    with pytest.raises(ConfigError, match="the graph has none"):
        partita.Trainer(store, out=tmp_path / "run", layers=2, fanout="cites=3,2")
    with pytest.raises(ConfigError, match="budgets are given for relations, and the graph has none"):
        partita.Trainer(store, out=tmp_path / "run", layers=2, sampler="layer", layer_budget="cites=30")
    with pytest.raises(ConfigError, match="a metapath is of relations, and the graph has none"):
        partita.Trainer(store, out=tmp_path / "run", layers=2, sampler="walk", fanout=3, metapath="cites")
    partita.Trainer(store, out=tmp_path / "run", layers=2, hidden=8, epochs=1, model="rgcn").fit()  # of one relation


def test_runs_on_walks_along_metapaths_are_those_of_one_worker_and_predict(folder, tmp_path) -> None:
    walk = {**SETTINGS, "model": "sage", "sampler": "walk", "fanout": "4,3", "walks": 6}
    cases = {"gdp": {"metapath": "cites cites"}, "dnp": {"metapath": "wrote", "topology": "partitioned"}}
    runs = {tmp_path / name: {**walk, **case, "strategy": name} for name, case in cases.items()}
    train_on_workers(folder / "parts2", 2, runs)
    for run, case in zip(runs, cases.values(), strict=True):
        alone = run.with_name(f"{run.name}-alone")
        partita.Trainer(folder / "parts2.whole", out=alone, **walk, metapath=case["metapath"]).fit()
        assert_same(run, alone)
        found = partita.predict(run, embeddings=True)
        assert len(found.embeddings)
        assert np.isfinite(found.embeddings).all()
        assert partita.evaluate(run, split="test")
