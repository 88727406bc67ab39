"""Whole runs on links: the model, the learnt rows and the ranks of one worker, whatever the strategy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from on_workers import resume_on_workers, train_on_workers
from safetensors.numpy import load_file

import partita
from partita.core.errors import ConfigError, StoreError
from partita.graph.store import GraphStore
from partita.testing.graphs import formula_store, small_random_store

pytestmark = pytest.mark.usefixtures("libraries")

SETTINGS = {
    "task": "links", "layers": 2, "hidden": 8, "fanout": (3, 2), "batch_size": 40, "epochs": 3, "precision": "float64",
    "negatives": 3, "held_out": "0.1,0.1",
}  # fmt: skip
ALONE = {
    "task": "links", "model": "none", "hidden": 8, "batch_size": 40, "epochs": 3, "precision": "float64",
    "held_out": "0.1,0.1", "negatives": 6,
}  # fmt: skip
CASES = {
    "features": {**SETTINGS, "strategy": "snp", "loss": "bpr", "eval_negatives": 9},
    "both": {**SETTINGS, "strategy": "gsplit", "embed": "5", "decoder": "mlp", "negative_sampler": "joint"},
    "disjoint": {**SETTINGS, "strategy": "snp", "model": "gcn", "topology": "partitioned", "message_share": 0.6},
    "partitioned": {**SETTINGS, "strategy": "dnp", "topology": "partitioned", "corrupt": "both"},
    "rows": {**ALONE, "decoder": "complex", "embed_optimizer": "adagrad", "reciprocal": True},
    "adversarial": {**ALONE, "decoder": "rotate", "loss": "self_adversarial", "negative_sampler": "degree"},
}
ELSEWHERE = ("strategy", "topology")
"""Settings that have nothing to do with what is computed."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links")
    formula_store(folder / "g", num_nodes=240, num_features=6, num_parts=2)
    return folder / "g"


def tensors(run: Path) -> dict[str, np.ndarray]:
    latest = max((run / "checkpoints").glob("epoch-*"))
    return {
        f"{file.name}/{name}": value
        for file in sorted(latest.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }


def assert_same_run(found: Path, wanted: Path, records: tuple[dict, dict]) -> None:
    one, other = tensors(found), tensors(wanted)
    assert one.keys() == other.keys()
    for name, value in other.items():
        np.testing.assert_allclose(one[name], value, rtol=1e-9, atol=1e-9 * np.abs(value).max(initial=0), err_msg=name)
    for split, metrics in records[1]["metrics"].items():
        assert records[0]["metrics"][split] == pytest.approx(metrics, rel=1e-6), split


def test_any_number_of_workers_trains_one_model(store, tmp_path) -> None:
    alone = {
        case: partita.Trainer(
            store, out=tmp_path / f"{case}-1", **{k: v for k, v in settings.items() if k not in ELSEWHERE}
        ).fit()
        for case, settings in CASES.items()
    }
    on_three = {case: CASES[case] | {"strategy": "gdp"} for case in ("features", "both", "rows")}
    on_three |= {"disjoint": CASES["disjoint"] | {"strategy": "gdp", "topology": "replicated"}}
    for workers, cases in ((2, CASES), (3, on_three)):
        runs = {tmp_path / f"{case}-{workers}": settings for case, settings in cases.items()}
        records = train_on_workers(store, workers, runs)
        for run, record in records.items():
            case = run.name.rpartition("-")[0]
            assert_same_run(run, tmp_path / f"{case}-1", (record, alone[case].record))


def test_a_run_goes_on_where_it_was_on_other_workers_too(store, tmp_path) -> None:
    settings = CASES["both"] | {"strategy": "gdp"}
    whole = partita.Trainer(store, out=tmp_path / "whole", **settings).fit()
    for run in ("alone", "two"):
        partita.Trainer(store, out=tmp_path / run, **{**settings, "epochs": 1}).fit()
    again = partita.Trainer.resume(tmp_path / "alone", epochs=3).fit()
    assert {name: value.tobytes() for name, value in tensors(tmp_path / "alone").items()} == {
        name: value.tobytes() for name, value in tensors(tmp_path / "whole").items()
    }
    assert again.record["metrics"] == whole.record["metrics"]
    record = resume_on_workers(2, {tmp_path / "two": {"epochs": 3}})[tmp_path / "two"]
    assert_same_run(tmp_path / "two", tmp_path / "whole", (record, whole.record))


def test_evaluation_is_that_of_the_run(store, tmp_path) -> None:
    run = partita.Trainer(store, out=tmp_path / "run", **CASES["rows"]).fit()
    found = partita.evaluate(tmp_path / "run", split="test")
    assert {name: found[name] for name in run.metrics["test"]} == pytest.approx(run.metrics["test"])
    assert found["edges"] == GraphStore.open(f"{store}.links").held_out["test"]
    two = partita.evaluate(tmp_path / "run", split="test", workers=2)
    assert {name: two[name] for name in run.metrics["test"]} == pytest.approx(run.metrics["test"], rel=1e-6)
    one, two = (partita.evaluate(tmp_path / "run", eval_negatives=9, workers=number) for number in (1, 2))
    assert one["candidates"] == two["candidates"] == 9
    assert {name: two[name] for name in run.metrics["test"]} == pytest.approx(
        {name: one[name] for name in run.metrics["test"]}, rel=1e-6
    )
    assert one["mrr"] > run.metrics["test"]["mrr"]


def matching(path: Path, pairs: int) -> Path:
    """A graph in which the only neighbor of a node is the one that it is to be linked with."""
    generator = np.random.default_rng(0)
    edges = generator.permutation(2 * pairs).reshape(2, pairs)
    np.savez(path.with_suffix(".npz"), edge_index=edges, x=generator.normal(size=(2 * pairs, 16)).astype(np.float32))
    partita.ingest(path.with_suffix(".npz"), path, undirected=True)
    return path


def test_an_edge_that_is_learned_is_not_seen(tmp_path) -> None:
    """Where its target is all that there is to see, a model learns nothing; without exclusion it learns to copy it."""
    graph, loss = matching(tmp_path / "g", 3000), {}
    settings = {**SETTINGS, "layers": 1, "fanout": (2,), "hidden": 16, "epochs": 5, "lr": 0.01, "norm": "none"}
    for excluded in (True, False):
        run = partita.Trainer(graph, out=tmp_path / f"{excluded}", exclude_targets=excluded, **settings).fit()
        loss[excluded] = last_loss(tmp_path / f"{excluded}")
        assert run.metrics["test"]["auc"] == pytest.approx(0.5, abs=0.1)
    assert loss[True] > 0.6
    assert loss[False] < 0.45


def test_an_edge_that_carries_messages_is_not_learned(tmp_path) -> None:
    """Where a predicted edge would be all that there is to see, a model learns nothing."""
    settings = {**SETTINGS, "layers": 1, "fanout": (2,), "hidden": 16, "epochs": 5, "lr": 0.01, "norm": "none"}
    partita.Trainer(matching(tmp_path / "g", 3000), out=tmp_path / "run", message_share=0.5, **settings).fit()
    assert last_loss(tmp_path / "run") > 0.6


def last_loss(run: Path) -> float:
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "epoch"][-1]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"decoder": "complex", "hidden": 7}, ConfigError, "halves|even"),
        ({"decoder": "complexe"}, ConfigError, "no decoder 'complexe'.*complex"),
        ({"loss": "focal"}, ConfigError, "focal"),
        ({"metric": "accuracy"}, ConfigError, "not reported for task 'links'"),
        ({"target_relations": "buys"}, ConfigError, "relations are named, and the graph has none"),
        ({"held_out": "0.5,0.6"}, ConfigError, "0.5|share"),
        ({"held_out": "many"}, ConfigError, "are not two shares"),
        ({"views": "cyclic", "halo": "one-hop", "sync": "model-average"}, ConfigError, "single nodes"),
        ({"task": "classes", "decoder": "dot"}, ConfigError, "decoder is for the task links"),
        ({"model": "none", "embed": "16"}, ConfigError, "model none"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, settings, error, message) -> None:
    small_random_store(tmp_path / "g", 90, 500, num_features=5)
    with pytest.raises(error, match=message):
        partita.Trainer(tmp_path / "g", out=tmp_path / "run", **{**SETTINGS, **settings}).fit()


def test_links_that_are_held_out_otherwise_are_not_taken(tmp_path) -> None:
    small_random_store(tmp_path / "g", 90, 500, num_features=5)
    partita.Trainer(tmp_path / "g", out=tmp_path / "run", **{**SETTINGS, "epochs": 1}).fit()
    with pytest.raises(StoreError, match="holds out other links"):
        partita.Trainer(tmp_path / "g", out=tmp_path / "b", **{**SETTINGS, "held_out": "0.05,0.05"})
