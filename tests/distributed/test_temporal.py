"""Runs on graphs with times: nothing is learnt from the future, and any number of workers train one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_bytes import digest
from on_workers import train_on_workers

import partita
from partita.core.errors import ConfigError
from partita.testing.graphs import formula_store

pytestmark = pytest.mark.usefixtures("libraries")

USERS, EVENTS = 600, 6
ALWAYS = np.iinfo(np.int64).min
SETTINGS: dict[str, Any] = {
    "layers": 2, "hidden": 8, "fanout": (4, 3), "batch_size": 64, "epochs": 2, "threads": 1, "lr": 0.01, "dropout": 0.0,
}  # fmt: skip
WORKERS = {
    "gdp": {"strategy": "gdp"},
    "edges of its own": {"strategy": "gdp", "topology": "partitioned", "seed_split": "owner"},
    "snp": {"strategy": "snp"},
    "dnp": {"strategy": "dnp", "topology": "partitioned"},
    "nfp": {"strategy": "nfp"},
    "gsplit": {"strategy": "gsplit", "cache": 2000},
    "cache": {"strategy": "gdp", "cache": 3000, "cache_layout": "partitioned"},
}


def future(*, typed: bool = False, hidden_in: str = "edges") -> dict[str, Any]:
    """Users are asked about at a time each; what tells their class is in events after that.

    Args:
        typed: users and events are of two types.
        hidden_in: ``"edges"``: edges from events have times; ``"nodes"``: the events have.
    """
    generator = np.random.default_rng(0)
    time, label = generator.integers(1000, 2000, USERS), generator.integers(0, 2, USERS)
    user = np.repeat(np.arange(USERS), EVENTS)
    late = np.arange(USERS * EVENTS) % 2 == 1
    when = time[user] + np.where(late, 1 + generator.integers(0, 50, late.size), -generator.integers(0, 50, late.size))
    x = generator.normal(size=(USERS + late.size, 4)).astype(np.float32)
    x[USERS:][late, 0] += 3 * (2 * label[user[late]] - 1)
    order = generator.permutation(USERS)
    found: dict[str, Any] = {
        "edge_index": np.stack([USERS + np.arange(late.size), user]),
        "seed_time": np.concatenate([time, np.full(late.size, ALWAYS)]),
        "y": np.concatenate([label, np.full(late.size, -1)]),
    }
    if hidden_in == "edges":
        found["edge_time"] = when
    else:
        found["node_time"] = np.concatenate([np.full(USERS, ALWAYS), when])
    for name, part in zip(("train", "val", "test"), np.split(order, [360, 480]), strict=True):
        found[f"{name}_mask"] = np.isin(np.arange(len(x)), part)
    if typed:
        found |= {"node_type": (np.arange(len(x)) >= USERS).astype(int), "edge_type": np.zeros(late.size, int)}
        found |= {"node_type_names": np.array(["user", "event"]), "edge_type_names": np.array(["of"])}
        return found | {"x_user": x[:USERS], "x_event": x[USERS:]}
    return found | {"x": x}


def made(folder: Path, arrays: dict[str, Any]) -> Path:
    np.savez(folder / "g.npz", **arrays)
    partita.ingest(folder / "g.npz", folder / "g")
    return folder / "g"


@pytest.mark.parametrize("hidden_in", ["edges", "nodes"])
@pytest.mark.parametrize("typed", [False, True])
def test_what_only_the_future_tells_is_at_chance(tmp_path, typed, hidden_in) -> None:
    store = made(tmp_path, future(typed=typed, hidden_in=hidden_in))
    found = {}
    for strategy in ("uniform", "last", "none"):
        run = tmp_path / strategy
        partita.Trainer(store, out=run, **{**SETTINGS, "epochs": 6}, temporal_strategy=strategy).fit()
        found[strategy] = partita.evaluate(run)["accuracy"]
        told = partita.predict(run, split="test", labels=True)
        assert (told.predicted == told.labels).mean() == pytest.approx(found[strategy])
    assert found["none"] > 0.95
    # Of 120 coins, fewer than 1 in 1000 draws are further from a half.
    assert abs(found["uniform"] - 0.5) < 0.15
    assert abs(found["last"] - 0.5) < 0.15


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The graph above, whole and in two parts, with past events that tell the class."""
    arrays = future()
    arrays["edge_time"] = 2 * arrays["seed_time"][arrays["edge_index"][1]] - arrays["edge_time"]
    folder = tmp_path_factory.mktemp("times")
    whole = made(folder, arrays)
    partita.partition(whole, folder / "two", parts=2, algorithm="random")
    return {"one": whole, "two": folder / "two"}


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "epoch"]


def metrics(run: Path, **options: Any) -> dict[str, float]:
    return {name: value for name, value in partita.evaluate(run, **options).items() if isinstance(value, float)}


def test_any_number_of_workers_and_strategy(stores, tmp_path) -> None:
    exact = {**SETTINGS, "precision": "float64", "epochs": 3}
    partita.Trainer(stores["one"], out=tmp_path / "one", **exact).fit()
    wanted = metrics(tmp_path / "one")
    assert wanted["accuracy"] > 0.9
    runs = {tmp_path / name: {**exact, **settings} for name, settings in WORKERS.items()}
    train_on_workers(stores["two"], 2, runs)
    for run in runs:
        assert losses(run) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(run) == pytest.approx(wanted, rel=1e-9)
    assert metrics(tmp_path / "gdp", workers=2) == pytest.approx(wanted, rel=1e-9)


def test_one_time_for_a_batch(stores, tmp_path) -> None:
    """All that a step draws is as early as its earliest seed, and any workers train one model."""
    exact = {**SETTINGS, "precision": "float64", "time_cutoff": "batch"}
    partita.Trainer(stores["one"], out=tmp_path / "one", **exact).fit()
    wanted = metrics(tmp_path / "one")
    runs = {tmp_path / name: {**exact, **settings} for name, settings in WORKERS.items()}
    train_on_workers(stores["two"], 2, runs)
    for run in runs:
        assert losses(run) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(run) == pytest.approx(wanted, rel=1e-9)
    partita.Trainer(stores["one"], out=tmp_path / "each", **{**exact, "time_cutoff": "seed"}).fit()
    assert losses(tmp_path / "each") != pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    hidden = made(tmp_path, future())
    partita.Trainer(hidden, out=tmp_path / "hidden", **{**exact, "epochs": 6}).fit()
    assert abs(partita.evaluate(tmp_path / "hidden")["accuracy"] - 0.5) < 0.15
    with pytest.raises(ConfigError, match=r"time_cutoff.*not sampled by time"):
        partita.Trainer(hidden, out=tmp_path / "none", **exact, temporal_strategy="none").fit()


@pytest.mark.parametrize("cutoff", ["seed", "batch"])
def test_resumed_in_the_same_bytes(stores, tmp_path, cutoff) -> None:
    settings = {**SETTINGS, "time_cutoff": cutoff}
    partita.Trainer(stores["one"], out=tmp_path / "through", **settings).fit()
    partita.Trainer(stores["one"], out=tmp_path / "run", **{**settings, "epochs": 1}).fit()
    partita.Trainer.resume(tmp_path / "run", epochs=2).fit()
    assert digest(tmp_path / "run") == digest(tmp_path / "through")


def test_learnt_rows_of_typed_graphs(tmp_path) -> None:
    """Owners are asked for rows in evaluations, too, by workers who have other numbers of nodes to judge."""
    whole = made(tmp_path, future(typed=True, hidden_in="nodes"))
    partita.partition(whole, tmp_path / "two", parts=2, algorithm="random")
    settings = {**SETTINGS, "precision": "float64", "embed": "user=4 event=3", "batch_size": 50, "eval_every": 1}
    partita.Trainer(whole, out=tmp_path / "one", **settings).fit()
    train_on_workers(
        tmp_path / "two", 2, {tmp_path / "run": settings, tmp_path / "snp": settings | {"strategy": "snp"}}
    )
    for name in ("run", "snp"):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(tmp_path / name) == pytest.approx(metrics(tmp_path / "one"), rel=1e-9)


DAY = 86_400_000_000  # microseconds


def visits(unit: int = DAY) -> dict[str, Any]:
    """Users with six visits each before they are asked about; half of them had one in the last ten days.

    Args:
        unit: of times, microseconds: they are integers in days, or in what a day is many of.
    """
    generator = np.random.default_rng(1)
    asked, label = generator.integers(1000, 2000, USERS), generator.integers(0, 2, USERS)
    ago = generator.integers(11, 300, (USERS, EVENTS))
    ago[:, 0] = np.where(label == 1, generator.integers(0, 11, USERS), ago[:, 0])
    when = (asked[:, None] - ago).reshape(-1)
    order, nodes = generator.permutation(USERS), USERS + when.size
    found: dict[str, Any] = {
        "edge_index": np.stack([USERS + np.arange(when.size), np.repeat(np.arange(USERS), EVENTS)]),
        "seed_time": np.concatenate([asked * (DAY // unit), np.full(when.size, ALWAYS)]),
        "node_time": np.concatenate([np.full(USERS, ALWAYS), when * (DAY // unit)]),
        "y": np.concatenate([label, np.full(when.size, -1)]),
        "node_type": (np.arange(nodes) >= USERS).astype(int),
        "edge_type": np.zeros(when.size, int),
        "node_type_names": np.array(["user", "visit"]),
        "edge_type_names": np.array(["of"]),
        "x_user": np.ones((USERS, 1), np.float32),
        "x_visit": generator.normal(size=(when.size, 2)).astype(np.float32),
    }
    for name, part in zip(("train", "val", "test"), np.split(order, [360, 480]), strict=True):
        found[f"{name}_mask"] = np.isin(np.arange(nodes), part)
    return found


AGED: dict[str, Any] = {
    **SETTINGS, "model": "rgcn", "layers": 1, "fanout": (6,), "hidden": 16, "lr": 0.05, "batch_size": 40,
}  # fmt: skip


def test_what_only_the_age_of_rows_tells(tmp_path) -> None:
    found, told = {}, {}
    for unit in (DAY, 1):
        (tmp_path / str(unit)).mkdir()
        store = made(tmp_path / str(unit), visits(unit))
        for encoding in ("auto", "none") if unit == DAY else ("age",):
            run = tmp_path / f"{unit}-{encoding}"
            settings = {**AGED, "precision": "float64", "epochs": 15}
            partita.Trainer(store, out=run, **settings, time_encoding=encoding).fit()
            found[run.name], told[run.name] = partita.evaluate(run)["accuracy"], losses(run)
    assert found[f"{DAY}-auto"] > 0.9
    assert abs(found[f"{DAY}-none"] - 0.5) < 0.15
    assert found["1-age"] == found[f"{DAY}-auto"]
    assert told["1-age"] == pytest.approx(told[f"{DAY}-auto"], rel=1e-6)  # whatever times are measured in


def test_edges_that_are_too_old(tmp_path) -> None:
    """Who had no visit in ten days has no neighbors then, and that tells the class without any ages."""
    store, two = made(tmp_path, visits()), tmp_path / "two"
    partita.partition(store, two, parts=2, algorithm="random")
    settings = {**AGED, "precision": "float64", "epochs": 6, "time_encoding": "none", "time_window": "of=10"}
    partita.Trainer(store, out=tmp_path / "run", **settings).fit()
    assert partita.evaluate(tmp_path / "run")["accuracy"] > 0.95
    train_on_workers(two, 2, {tmp_path / "snp": {**settings, "strategy": "snp", "topology": "partitioned"}})
    assert losses(tmp_path / "snp") == pytest.approx(losses(tmp_path / "run"), rel=1e-9)
    assert metrics(tmp_path / "snp", workers=2) == pytest.approx(metrics(tmp_path / "run"), rel=1e-9)


@pytest.fixture(scope="module")
def aged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ages")
    whole = made(folder, visits())
    partita.partition(whole, folder / "two", parts=2, algorithm="random")
    return {"one": whole, "two": folder / "two"}


def test_ages_on_two_workers(aged, tmp_path) -> None:
    """With learnt rows, in evaluations while training, and in evaluations and predictions of the run."""
    settings = {**AGED, "precision": "float64", "embed": "user=4", "eval_every": 1}
    partita.Trainer(aged["one"], out=tmp_path / "one", **settings).fit()
    runs = {tmp_path / name: {**settings, "strategy": name} for name in ("gdp", "snp", "gsplit")}
    runs[tmp_path / "gdp"] |= {"topology": "partitioned"}
    train_on_workers(aged["two"], 2, runs)
    for run in runs:
        assert losses(run) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(run) == pytest.approx(metrics(tmp_path / "one"), rel=1e-9)
    one, two = (
        partita.predict(run, split="test", labels=True, workers=workers)
        for run, workers in ((tmp_path / "one", 1), (tmp_path / "snp", 2))
    )
    assert (one.predicted == two.predicted).all()


def test_ages_are_resumed_in_the_same_bytes(aged, tmp_path, monkeypatch) -> None:
    """In the unit that the run began with, also where another one would be chosen by now."""
    partita.Trainer(aged["one"], out=tmp_path / "through", **AGED).fit()
    partita.Trainer(aged["one"], out=tmp_path / "run", **{**AGED, "epochs": 1}).fit()
    monkeypatch.setattr("partita.setup.model.age_unit", lambda store: 5.0)
    partita.Trainer.resume(tmp_path / "run", epochs=2).fit()
    assert digest(tmp_path / "run") == digest(tmp_path / "through")
    encoder = json.loads((tmp_path / "run/run.json").read_text())["model"]["encoder"]
    assert encoder["dated"] == ["visit"]


def test_ages_in_another_store(aged, tmp_path) -> None:
    """Ages are measured in the unit of the store that the run was trained on."""
    run = tmp_path / "run"
    partita.Trainer(aged["one"], out=run, **AGED).fit()
    own = partita.predict(run, split="test")
    arrays = visits()
    (tmp_path / "later").mkdir()
    later = {name: np.where(arrays[name] == ALWAYS, ALWAYS, arrays[name] + 70) for name in ("node_time", "seed_time")}
    other = made(
        tmp_path / "later", {**arrays, **later, "train_mask": arrays["test_mask"], "test_mask": arrays["train_mask"]}
    )
    found = partita.predict(run, store=other, split="train")
    assert (found.predicted == own.predicted).all()
    (tmp_path / "timeless").mkdir()
    without = {name: values for name, values in arrays.items() if name not in ("node_time", "seed_time")}
    with pytest.raises(ConfigError, match="the model reads how old rows are"):
        partita.evaluate(run, store=made(tmp_path / "timeless", without))
    with pytest.raises(ConfigError, match="which plain PyG is not given"):
        partita.export_model(run, tmp_path / "out")


def test_ages_that_are_missing_are_refused(aged, stores, tmp_path) -> None:
    for store, settings, message in (
        (stores["one"], {}, "of typed graphs only"),
        (aged["one"], {"temporal_strategy": "none"}, "not sampled by time"),
        (made(tmp_path, future(typed=True)), {}, "the nodes of the store have no times"),
    ):
        with pytest.raises(ConfigError, match=message):
            partita.Trainer(store, out=tmp_path / "run", **{**SETTINGS, **settings, "time_encoding": "age"}).fit()


def test_models_of_ones_own_read_ages(aged, tmp_path) -> None:
    def model(**options: Any) -> partita.Model:
        encoder = partita.Encoder((1, 2), 8, ("user", "visit"), **options)
        return partita.Model.from_layers([partita.nn.layers.LAYERS.find("sage")(8, 2)], encoder=encoder)

    settings = {**SETTINGS, "layers": 1, "fanout": (4,), "epochs": 1}
    run = tmp_path / "run"
    partita.Trainer(aged["one"], out=run, model=model(dated=["visit"], age_unit=30.0), **settings).fit()
    assert 0 <= partita.evaluate(run)["accuracy"] <= 1
    with pytest.raises(ConfigError, match="does not read how old"):
        partita.Trainer(aged["one"], out=tmp_path / "b", model=model(), **settings, time_encoding="age").fit()


def test_batches_of_one_seed(stores, tmp_path) -> None:
    """With input dropout, whose masks are keyed by nodes."""
    run = tmp_path / "run"
    settings = {**SETTINGS, "batch_size": 1, "epochs": 1, "input_dropout": 0.2, "eval_every": 0}
    partita.Trainer(stores["one"], out=run, **settings).fit()
    assert np.isfinite(losses(run)).all()


REFUSED = [
    ({"sampler": "labor"}, "does not draw by time"),
    ({"model": "gcn"}, "weighs edges by the degrees"),
    ({"views": "cyclic"}, "do not know times"),
    ({"topology_memory": 10**6}, "read from files"),
    ({"temporal_strategy": "last", "replace": True}, "none is drawn"),
    ({"task": "links"}, "not said from when on"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_is_not_sampled_by_time_is_refused(stores, tmp_path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partita.Trainer(stores["one"], out=tmp_path / "run", **{**SETTINGS, **settings}).fit()
    assert not (tmp_path / "run").exists()
    assert not stores["one"].with_name("g.links").exists()


def test_times_that_are_missing_are_refused(tmp_path) -> None:
    plain = tmp_path / "plain"
    formula_store(plain, num_nodes=60, num_features=4)
    with pytest.raises(ConfigError, match="the edges of the store have no times"):
        partita.Trainer(plain, out=tmp_path / "run", **SETTINGS, temporal_strategy="last").fit()
    arrays = future()
    seed_time = arrays.pop("seed_time")
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match="the nodes have none"):
        partita.Trainer(made(tmp_path / "a", arrays), out=tmp_path / "run", **SETTINGS).fit()
    seed_time[np.flatnonzero(arrays["val_mask"])[:3]] = ALWAYS
    (tmp_path / "b").mkdir()
    store = made(tmp_path / "b", {**arrays, "seed_time": seed_time})
    with pytest.raises(ConfigError, match="3 of the 120 nodes of the split 'val' have no time"):
        partita.Trainer(store, out=tmp_path / "run", **SETTINGS).fit()
