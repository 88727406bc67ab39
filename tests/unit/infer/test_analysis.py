"""What is recorded of a model's answers, beside plain loops over what the model says of every node."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import partita
from partita.comm.context import Context
from partita.infer import analysis
from partita.infer.analysis import principal_components, same_class_share
from partita.infer.run import inference_of
from partita.runs.load import load_run
from partita.tasks.task import make_task
from partita.testing.graphs import small_random_store

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "5,5", "batch_size": 64, "epochs": 2, "threads": 1}


def trained(folder: Path, **options) -> Path:
    small_random_store(folder / "graph", 300, 2400, **options)
    partita.Trainer(folder / "graph", out=folder / "run", **SETTINGS).fit()
    return folder / "run"


def recorded(run: Path) -> dict:
    return json.loads((run / "analysis.json").read_text())


def answers(run: Path, split: str):
    """Store, ids, truth and outputs of a split, computed once more."""
    loaded = load_run(run)
    task = make_task(loaded.config, loaded.store)
    ids = task.seeds(split)
    inference = inference_of(loaded.model, loaded.store, loaded.config, Context.alone())
    rows = list(inference.collect(ids, embeddings=True))
    output = torch.cat([each.output for each in rows]).float()
    return loaded.store, ids.numpy(), task.targets(ids), output, torch.cat([each.embedding for each in rows])


@pytest.fixture(scope="module")
def classes(tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("classes"), num_classes=4)


def test_classes(classes) -> None:
    store, ids, y, output, embeddings = answers(classes, "test")
    found = recorded(classes)["splits"]["test"]
    probability = output.softmax(1)
    said, confidence = probability.argmax(1), probability.max(1).values
    pairs = Counter(zip(y.tolist(), said.tolist()))
    assert found["nodes"] == len(ids)
    assert found["confusion"]["counts"] == [[pairs[true, given] for given in range(4)] for true in range(4)]
    record = json.loads((classes / "run.json").read_text())
    assert found["correct"] / found["nodes"] == pytest.approx(record["metrics"]["test"]["accuracy"])
    for pair in found["confused"]:
        true, given = int(pair["true"]), int(pair["predicted"])
        assert pair["nodes"] == pairs[true, given]
        assert pair["of"] == int((y == true).sum())
        places = [int(np.flatnonzero(store.names(ids) == int(name))[0]) for name in pair["examples"]]
        assert all((int(y[place]), int(said[place])) == (true, given) for place in places)
        assert confidence[places].tolist() == pytest.approx(pair["confidence"], rel=1e-4)
    counts = [pair["nodes"] for pair in found["confused"]]
    assert counts == sorted((count for (a, b), count in pairs.items() if a != b), reverse=True)
    calibration = found["calibration"]
    assert sum(calibration["counts"]) == len(ids)
    assert sum(calibration["correct"]) == found["correct"]
    assert sum(calibration["confidence"]) == pytest.approx(float(confidence.sum()), rel=1e-4)
    error = sum(
        abs(float(((said == y).double() - confidence.double())[(confidence * 20).long().clamp(max=19) == place].sum()))
        for place in range(20)
    )
    assert calibration["expected_error"] == pytest.approx(error / len(ids), rel=1e-4)
    degree = store.in_degree(ids)
    for first, last, nodes, right in zip(*(found["by_degree"][key] for key in ("from", "to", "nodes", "sum"))):
        these = (degree >= first) & (degree <= last)
        assert (nodes, right) == (int(these.sum()), int((said == y).numpy()[these].sum()))
    train = Counter(store.y[store.split("train")].tolist())
    majority = max(range(4), key=lambda each: train[each])
    assert found["baseline"]["answer"] == str(majority)
    assert found["baseline"]["metrics"]["accuracy"] == pytest.approx(float((y == majority).double().mean()))
    assert recorded(classes)["labels"]["splits"]["train"] == [train[each] for each in range(4)]
    points = found["map"]
    centered = embeddings.double().numpy() - embeddings.double().numpy().mean(0)
    distance = np.linalg.norm(centered[0] - centered[1])
    assert np.linalg.norm(np.subtract(*points["components"][:2])) == pytest.approx(distance, rel=1e-3)  # all of 8
    assert points["labels"] == [str(each) for each in y.tolist()]
    assert points["correct"] == (said == y).long().tolist()


def test_homophily(classes) -> None:
    store, ids, y, output, _ = answers(classes, "test")
    share = same_class_share(store, ids, y.numpy())
    for node, own, found in zip(ids.tolist(), y.tolist(), share.tolist()):
        others = [store.y[other] for other in store.neighbors(node) if other != node and store.y[other] >= 0]
        assert found == pytest.approx(np.mean([each == own for each in others]) if others else np.nan, nan_ok=True)
    found = recorded(classes)["splits"]["test"]["by_homophily"]
    assert sum(found["nodes"]) + found["unknown"]["nodes"] == len(ids)
    right = (output.argmax(1) == y).numpy()
    assert found["correct"][0] == int(right[share < 0.1].sum())
    assert found["nodes"][9] == int((share >= 0.9).sum())


def test_many_classes_are_cut(classes, monkeypatch) -> None:
    truth, said = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 1, 1, 3, 3, 3])
    monkeypatch.setattr(analysis, "MOST_CLASSES", 2)
    found = analysis._confusion(truth, said, ["a", "b", "c", "d"])
    assert found == {"classes": ["a", "d"], "others": 2, "counts": [[1, 0, 1], [0, 2, 0], [0, 1, 1]]}
    monkeypatch.setattr(analysis, "MOST_BALANCED", 2)
    assert analysis._most(["a", "b", "c"], {"train": [5, 1, 2], "test": [0, 1, 4]}) == {
        "names": ["a", "c"], "others": 1, "splits": {"train": [5, 2, 1], "test": [0, 4, 1]}
    }  # fmt: skip


def test_values(tmp_path) -> None:
    run = trained(tmp_path, num_classes=1, task="regression")
    store, ids, y, output, _ = answers(run, "test")
    found, truth = recorded(run)["splits"]["test"], y.double().numpy()
    residual = output[:, 0].double().numpy() - truth
    assert found["points"]["true"] == pytest.approx(truth.tolist(), rel=1e-5)
    assert found["points"]["predicted"] == pytest.approx((truth + residual).tolist(), rel=1e-4)
    assert found["r2"] == pytest.approx(1 - (residual**2).sum() / ((truth - truth.mean()) ** 2).sum(), rel=1e-5)
    histogram = found["residuals"]
    assert sum(histogram["counts"]) + histogram["below"] + histogram["above"] == len(ids)
    assert found["worst"]["nodes"][0] == str(store.names(ids)[np.abs(residual).argmax()])
    mean = store.y[store.split("train")].astype(np.float64).mean()
    assert found["baseline"]["metrics"]["mae"] == pytest.approx(np.abs(truth - mean).mean(), rel=1e-5)
    assert sum(found["by_degree"]["sum"]) == pytest.approx(np.abs(residual).sum(), rel=1e-4)
    assert sum(recorded(run)["labels"]["splits"]["train"]) == len(store.split("train"))


def test_labels(tmp_path) -> None:
    run = trained(tmp_path, num_classes=3, task="multilabel")
    store, ids, y, output, _ = answers(run, "test")
    found = recorded(run)["splits"]["test"]
    assert sum(found["calibration"]["counts"]) == 3 * len(ids)
    assert sum(found["by_degree"]["sum"]) == int(((output > 0) & y.bool()).sum())
    assert sum(found["by_degree"]["wrong"]) == int(((output > 0) ^ y.bool()).sum())
    given = store.y[store.split("train")].mean(0) > 0.5
    hits, holding = int(y.numpy()[:, given].sum()), int(y.sum())
    micro = 2 * hits / (holding + given.sum() * len(ids))
    assert found["baseline"]["metrics"]["micro_f1"] == pytest.approx(micro)


def test_two_classes_have_curves(tmp_path) -> None:
    run = trained(tmp_path, num_classes=2)
    _, _, y, output, _ = answers(run, "test")
    curve = recorded(run)["splits"]["test"]["curve"]
    score = output.double().softmax(1)[:, 1]
    for place in (0, len(curve["threshold"]) // 2, -1):
        taken = score >= curve["threshold"][place] - 1e-6
        assert curve["true_positive_rate"][place] == pytest.approx(float(taken[y == 1].double().mean()), abs=1e-5)
        assert curve["precision"][place] == pytest.approx(float((y[taken] == 1).double().mean()), abs=1e-5)
    auc = json.loads((run / "run.json").read_text())["metrics"]["test"]["roc_auc"]
    heights, places = (torch.tensor([0, *curve[f"{name}_positive_rate"]]) for name in ("true", "false"))
    area = float(torch.trapezoid(heights, places))
    assert area == pytest.approx(auc, abs=0.02)


def test_evaluate_adds_what_is_missing(classes, tmp_path) -> None:
    whole = recorded(classes)
    assert set(whole["splits"]) == {"val", "test"}
    before = (classes / "analysis.json").read_bytes()
    partita.evaluate(classes)
    assert (classes / "analysis.json").read_bytes() == before  # it is there
    partita.evaluate(classes, split="train")
    assert set(recorded(classes)["splits"]) == {"val", "test", "train"}
    (classes / "analysis.json").write_text("{")
    partita.evaluate(classes)
    assert recorded(classes) == {**whole, "splits": {"test": whole["splits"]["test"]}}


def test_a_sample_of_many(monkeypatch, classes) -> None:
    monkeypatch.setattr(analysis, "SAMPLE", 40)
    (classes / "analysis.json").unlink(missing_ok=True)
    partita.evaluate(classes)
    found = recorded(classes)["splits"]["test"]["map"]
    store, ids, y, _, _ = answers(classes, "test")
    names = store.names(ids).tolist()
    assert len(found["nodes"]) == 40
    assert found["labels"] == [str(int(y[names.index(int(name))])) for name in found["nodes"]]


def test_components() -> None:
    rows = np.random.default_rng(1).normal(size=(50, 6)) * [5, 3, 1, 1, 1, 1]
    scores, variance = principal_components(rows, 3)
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    assert variance == pytest.approx(values[:3] / values.sum())
    assert np.var(scores, axis=0, ddof=1) == pytest.approx(values[:3])
    assert (scores[np.abs(scores).argmax(0), range(3)] > 0).all()


def test_a_partitioned_store_has_the_same(classes, tmp_path) -> None:
    """Names, classes and degrees do not depend on the ids within a store."""
    partita.partition(classes.parent / "graph", tmp_path / "two", parts=2, algorithm="random")
    (classes / "analysis.json").unlink(missing_ok=True)
    partita.evaluate(classes)
    partita.Trainer(tmp_path / "two", out=tmp_path / "run", **SETTINGS).fit()
    one, two = recorded(classes)["splits"]["test"], recorded(tmp_path / "run")["splits"]["test"]
    for key in ("confusion", "by_degree", "by_homophily", "baseline", "correct"):
        assert one[key] == two[key], key
    assert one["map"]["nodes"] == two["map"]["nodes"]
    # The same rows up to rounding; components beyond those that stand out may turn.
    assert np.abs(np.subtract(one["map"]["variance"], two["map"]["variance"])).max() < 1e-4
