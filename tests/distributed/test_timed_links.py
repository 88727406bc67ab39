"""Runs on links in time: nothing is learnt from the future, and any number of workers train one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_bytes import digest
from on_workers import train_on_workers

import partita
from partita.config import Config
from partita.core.errors import ConfigError, StoreError
from partita.core.keys import StepKey
from partita.graph.store import GraphStore
from partita.sample.temporal import SeedTimes
from partita.tasks.links.edges import TIME
from partita.tasks.task import make_task, seed_order
from partita.tasks.times import TaskTimes

pytestmark = pytest.mark.usefixtures("libraries")

ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
USERS, ITEMS, KINDS = 300, 24, 6
SETTINGS: dict[str, Any] = {
    "task": "links", "layers": 2, "hidden": 16, "fanout": (6, 4), "batch_size": 64, "epochs": 2, "threads": 1,
    "lr": 0.02, "dropout": 0.0, "negatives": 3,
}  # fmt: skip
WORKERS = {
    "gdp": {"strategy": "gdp"},
    "edges of its own": {"strategy": "gdp", "topology": "partitioned", "seed_split": "owner"},
    "snp": {"strategy": "snp"},
    "dnp": {"strategy": "dnp", "topology": "partitioned"},
    "gsplit": {"strategy": "gsplit", "cache": 2000},
}


def shop(signal: str, *, typed: bool = True, asked: bool = False) -> dict[str, Any]:
    """Users buy items of one kind once more.

    Args:
        signal: which purchases are of the kind that the user likes: ``"earlier"``: all; else only the one that is to be
            foretold, and ``"later"`` those after it. The others are of any kind.
        typed: users and items are of two types.
        asked: users are asked about at a time of their own; else the purchases themselves say when.
    """
    generator = np.random.default_rng(0)
    liked = generator.integers(0, KINDS, USERS)
    when = generator.integers(100, 400, USERS)
    last = when + generator.integers(1, 5, USERS)  # to be foretold
    users, items, days = [], [], []
    for user in range(USERS):
        own = generator.permutation(ITEMS // KINDS) * KINDS + liked[user]
        early = own[1:] if signal == "earlier" else generator.integers(0, ITEMS, len(own) - 1)
        users += [user] * (len(early) + 1)
        items += [*early, own[0]]
        days += [*(when[user] - generator.integers(0, 20, len(early))), last[user]]
        if signal == "later":
            users += [user] * 2
            items += [*own[1:3]]
            days += [last[user] + 1, last[user] + 2]
    kind = np.eye(KINDS)[np.arange(ITEMS) % KINDS]
    found: dict[str, Any] = {
        "edge_index": np.stack([users, USERS + np.array(items)]), "edge_time": np.array(days),
    }  # fmt: skip
    if asked:
        found["seed_time"] = np.concatenate([when, np.full(ITEMS, ALWAYS)])
    if typed:
        found |= {"node_type": np.repeat([0, 1], [USERS, ITEMS]), "edge_type": np.zeros(len(users), int)}
        found |= {"node_type_names": np.array(["user", "item"]), "edge_type_names": np.array(["buys"])}
        return found | {"x_user": np.ones((USERS, 1), np.float32), "x_item": kind.astype(np.float32)}
    return found | {"x": np.concatenate([np.zeros((USERS, KINDS)), kind]).astype(np.float32)}


def made(folder: Path, arrays: dict[str, Any], name: str = "g") -> Path:
    partita.ingest(arrays, folder / name, undirected=True, split_times=("250", "320"))
    return folder / name


@pytest.mark.parametrize(("typed", "asked"), [(True, True), (False, True), (True, False), (False, False)])
def test_only_what_is_earlier_tells_links(tmp_path, typed, asked) -> None:
    """Of 24 items 4 are of a kind: who knows nothing has a mean 1 / rank of some 0.16, who knows the kind of 0.4."""
    found = {}
    for signal in ("later" if asked else "none", "earlier"):
        store = made(tmp_path, shop(signal, typed=typed, asked=asked), signal)
        settings = {**SETTINGS, "layers": 1, "fanout": (3,), "epochs": 12, "lr": 0.05, "negatives": 8, "eval_every": 0}
        settings["temporal_strategy"] = "last" if typed else "uniform"
        partita.Trainer(store, out=tmp_path / f"run-{signal}", **settings).fit()
        found[signal] = partita.evaluate(tmp_path / f"run-{signal}")["mrr"]
    assert found.pop("earlier") > 0.3
    assert max(found.values()) < 0.22


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Typed and untyped, whole and in two parts, with nodes that come to be there."""
    folder, found = tmp_path_factory.mktemp("links"), {}
    for kind in ("typed", "untyped"):
        arrays = shop("earlier", typed=kind == "typed", asked=kind == "typed")
        # Evaluation computes all rows at every time of a split, so there are few times.
        for name in ("edge_time", *(["seed_time"] if "seed_time" in arrays else [])):
            arrays[name] = np.where(arrays[name] == ALWAYS, ALWAYS, arrays[name] // 16 * 16 + 9)
        arrays["node_time"] = np.concatenate([np.full(USERS, ALWAYS), np.arange(ITEMS) * 8])
        found[kind] = made(folder, arrays, kind)
        partita.partition(found[kind], folder / f"{kind}-2", parts=2, algorithm="random")
        found[f"{kind}-2"] = folder / f"{kind}-2"
    return found


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "epoch"]


def metrics(run: Path, **options: Any) -> dict[str, float]:
    return {name: value for name, value in partita.evaluate(run, **options).items() if isinstance(value, float)}


@pytest.mark.parametrize("kind", ["typed", "untyped"])
def test_any_number_of_workers_and_strategy(stores, tmp_path, kind) -> None:
    exact = {**SETTINGS, "precision": "float64", "negative_sampler": "degree" if kind == "typed" else "uniform"}
    exact |= {"embed": "user=4", "corrupt": "both", "decoder": "distmult"} if kind == "typed" else {"embed": "4"}
    partita.Trainer(stores[kind], out=tmp_path / "one", **exact).fit()
    wanted, sampled = metrics(tmp_path / "one"), metrics(tmp_path / "one", eval_negatives=5)
    assert set(wanted) == {"mrr", "hits@1", "hits@3", "hits@10", "map@10"}
    assert sampled["mrr"] > wanted["mrr"]
    able = {name: of for name, of in WORKERS.items() if kind == "untyped" or name in ("gdp", "edges of its own", "dnp")}
    runs = {tmp_path / name: {**exact, **settings} for name, settings in able.items()}
    train_on_workers(stores[f"{kind}-2"], 2, runs)
    for run in runs:
        assert losses(run) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(run) == pytest.approx(wanted, rel=1e-9)
    assert metrics(tmp_path / "gdp", workers=2) == pytest.approx(wanted, rel=1e-9)
    assert metrics(tmp_path / "gdp", workers=2, eval_negatives=5) == pytest.approx(sampled, rel=1e-9)
    for workers in (1, 2):
        name = {"relation": "buys"} if kind == "typed" else {}
        partita.predict_links(
            tmp_path / ("one" if workers == 1 else "gdp"),
            out=tmp_path / f"{workers}.csv",
            links=3,
            workers=workers,
            **name,
        )
    one, two = ([line.split(",") for line in (tmp_path / f"{n}.csv").read_text().splitlines()[1:]] for n in (1, 2))
    assert [line[0] for line in one] == [line[0] for line in two]
    # Of equal scores but for rounding any may be the last one.
    assert [float(line[-2]) for line in one] == pytest.approx([float(line[-2]) for line in two], rel=1e-5)


def test_one_time_for_a_batch(stores, tmp_path) -> None:
    """All edges of a step are asked about when its first one is; their negatives are those of their own time."""
    exact = {**SETTINGS, "precision": "float64", "time_cutoff": "batch", "eval_negatives": 5}
    partita.Trainer(stores["untyped"], out=tmp_path / "one", **exact).fit()
    runs = {tmp_path / name: {**exact, **WORKERS[name]} for name in ("gdp", "edges of its own", "snp")}
    train_on_workers(stores["untyped-2"], 2, runs)
    for run in runs:
        assert losses(run) == pytest.approx(losses(tmp_path / "one"), rel=1e-9)
        assert metrics(run) == pytest.approx(metrics(tmp_path / "one"), rel=1e-9)
    store = GraphStore.open(stores["untyped"])
    each, once = (make_task(Config.make({**exact, "time_cutoff": cutoff}), store) for cutoff in ("seed", "batch"))
    seeds = each.seeds("train")
    times = TaskTimes.of_run(once, SeedTimes(seeds[:0, 0], 64, at_once=True))
    order = seed_order(once, seeds, once.config, times.each(seeds))
    for step in range(order.num_steps):
        begin = step * order.batch_size
        batch, key = order.between(1, begin, begin + order.size(step)), StepKey(0, 1, step)
        found, expected = order.batch(1, step), each.examples(batch, key)
        assert times.of(batch).tolist() == [int(batch[:, TIME].min())]
        assert (found[:, TIME] == batch[:, TIME].min()).all()
        assert torch.equal(torch.cat([found[:, :TIME], found[:, TIME + 1 :]], 1),
                           torch.cat([expected[:, :TIME], expected[:, TIME + 1 :]], 1))  # fmt: skip
        asked = times.requests(found, times.of(batch))
        assert (asked % 64 == 0).all()
        assert len(asked.unique()) == len(asked)


def test_resumed_in_the_same_bytes(stores, tmp_path) -> None:
    partita.Trainer(stores["typed"], out=tmp_path / "through", **SETTINGS).fit()
    partita.Trainer(stores["typed"], out=tmp_path / "run", **{**SETTINGS, "epochs": 1}).fit()
    partita.Trainer.resume(tmp_path / "run", epochs=2).fit()
    assert digest(tmp_path / "run") == digest(tmp_path / "through")


def test_rows_alone(stores, tmp_path) -> None:
    """A model without layers is trained and judged by time, too, which is what others are compared with."""
    settings = {**SETTINGS, "model": "none", "negative_sampler": "degree"}
    for kind in ("layers", "fanout"):
        settings.pop(kind)
    run = partita.Trainer(stores["untyped"], out=tmp_path / "run", **settings).fit()
    assert 0 < run.metrics["test"]["map@10"] < 1


def test_questions_of_their_own(tmp_path) -> None:
    """Questions with a time, whose answers never carry messages: a relation from questions to items of another time."""
    generator = np.random.default_rng(2)
    arrays = shop("earlier")
    users, asked = np.arange(USERS), generator.integers(100, 400, USERS)
    first = USERS + ITEMS
    answer = USERS + generator.integers(0, ITEMS, USERS)
    arrays["edge_index"] = np.concatenate(
        [arrays["edge_index"], np.stack([users, first + users]), np.stack([first + users, answer])], axis=1
    )
    arrays["edge_time"] = np.concatenate([arrays["edge_time"], np.full(USERS, ALWAYS), np.full(USERS, NEVER)])
    arrays["edge_type"] = np.concatenate([arrays["edge_type"], np.repeat([1, 2], USERS)])
    arrays["node_type"] = np.concatenate([arrays["node_type"], np.full(USERS, 2)])
    arrays["seed_time"] = np.concatenate([np.full(first, ALWAYS), asked])
    arrays |= {"node_type_names": np.array(["user", "item", "question"])}
    arrays |= {"edge_type_names": np.array(["buys", "asks", "answer"])}
    store = made(tmp_path, arrays)
    run = partita.Trainer(store, out=tmp_path / "run", **SETTINGS, target_relations="answer").fit()
    found = partita.evaluate(tmp_path / "run")
    assert found["edges"] == (asked >= 320).sum()
    assert set(run.metrics) == {"val", "test"}
    partita.predict_links(tmp_path / "run", out=tmp_path / "best.csv", links=2, relation="answer")
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 1 + 2 * USERS


REFUSED = [
    ({"negative_sampler": "joint"}, "negatives of their own"),
    ({"negative_sampler": "in_batch", "negatives": 0}, "negatives of their own"),
    ({"message_share": 0.5}, "from its time on"),
    ({"exclude_targets": False}, "no messages before its time"),
    ({"known_negatives": False}, "come later"),
    ({"loop_negatives": True}, "there at a time"),
    ({"held_out": "0.1,0.1"}, "split by time"),
    ({"split_times": "9"}, "not two times"),
    ({"split_times": "9,soon"}, "'soon' is no time"),
    ({"split_times": "320,250"}, "the earlier first"),
    ({"split_times": "-500,250"}, "no edge is asked about before validation begins"),
    ({"metric": "auc"}, "not reported"),
    ({"views": "cyclic"}, "do not know times"),
    ({"temporal_strategy": "none", "split_times": "1,2"}, "only where times of edges count"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_is_not_asked_about_at_times_is_refused(stores, tmp_path, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        partita.Trainer(stores["untyped"], out=tmp_path / "run", **{**SETTINGS, **settings}).fit()
    assert not (tmp_path / "run").exists()


def test_stores_that_are_not_for_links_in_time_are_refused(stores, tmp_path) -> None:
    partita.ingest(shop("earlier"), tmp_path / "plain")
    with pytest.raises(ConfigError, match="not said from when on"):
        partita.Trainer(tmp_path / "plain", out=tmp_path / "run", **SETTINGS).fit()
    partita.Trainer(tmp_path / "plain", out=tmp_path / "run", **{**SETTINGS, "epochs": 1}, split_times="250,320").fit()
    partita.split_links(tmp_path / "plain", tmp_path / "held")
    with pytest.raises(ConfigError, match="held out of the store"):
        partita.Trainer(tmp_path / "held", out=tmp_path / "no", **SETTINGS, split_times="250,320").fit()
    with pytest.raises(StoreError, match="no edge is asked about in the time of the split 'other'"):
        partita.evaluate(tmp_path / "run", split="other")
    np.savez(tmp_path / "given.npz", source=[0], target=[USERS], target_candidates=[[USERS + 1]])
    with pytest.raises(ConfigError, match="at no time"):
        partita.evaluate(tmp_path / "run", candidates=tmp_path / "given.npz")
    assert not (tmp_path / "plain.links").exists()


def test_what_is_left_out_is_said(tmp_path) -> None:
    """And by edges: always there, known when asked about, between nodes that are not there yet, and twice."""
    edges = np.array([[0, 0, 1, 1, 2, 2, 2, 3], [4, 5, 4, 5, 4, 5, 5, 4]])
    arrays = {
        "edge_index": edges, "edge_time": [ALWAYS, 5, 20, 10, 30, 30, 30, 9], "x": np.ones((6, 2), np.float32),
        "node_time": [ALWAYS, ALWAYS, ALWAYS, 9, ALWAYS, 7], "seed_time": [ALWAYS, 15, 25, ALWAYS, ALWAYS, ALWAYS],
    }  # fmt: skip
    arrays = {name: np.asarray(values) for name, values in arrays.items()}
    partita.ingest(arrays, tmp_path / "g", split_times=("20", "21"))
    partita.Trainer(tmp_path / "g", out=tmp_path / "run", **{**SETTINGS, "epochs": 1, "batch_size": 2}).fit()
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    notes = [line["text"] for line in lines if line["event"] == "note" and "not asked about" in line["text"]]
    assert notes == [
        "1 of 8 edges are not asked about: they were always there",
        "1 of 8 edges are not asked about: they are known by the time at which their source is asked about",
        "1 of 8 edges are not asked about: they have a source that is not there yet",
        "1 of 8 edges are not asked about: they have a destination that is not there yet",
        "1 of 8 edges are not asked about: they repeat others at the same time",
    ]
    store = GraphStore.open(tmp_path / "g")
    assert store.metadata.notes["split_times"] == [20, 21]
    assert partita.evaluate(tmp_path / "run", split="test")["edges"] == 2


def test_reverses_that_come_too_early_are_refused(tmp_path) -> None:
    """They would tell what is to be foretold; those of later nodes are told apart from them."""
    arrays = shop("earlier")
    edges, count = arrays["edge_index"], arrays["edge_index"].shape[1]
    arrays["edge_index"] = np.concatenate([edges, edges[::-1]], axis=1)
    arrays["edge_type"] = np.repeat([0, 1], count)
    arrays["edge_type_names"] = np.array(["buys", "rev_buys"])
    day = arrays["edge_time"]
    for name, times in (("same", day), ("early", np.full(count, ALWAYS))):
        arrays["edge_time"] = np.concatenate([day, times])
        partita.ingest(arrays, tmp_path / name, split_times=("250", "320"))
    settings = {**SETTINGS, "epochs": 1}
    partita.Trainer(tmp_path / "same", out=tmp_path / "run", **settings).fit()
    with pytest.raises(ConfigError, match="relation 'user:buys:item' have a reverse that is there before"):
        partita.Trainer(tmp_path / "early", out=tmp_path / "no", **settings).fit()


def test_many_times_take_a_word(stores, tmp_path) -> None:
    arrays = shop("earlier")
    arrays["edge_time"] = arrays["edge_time"] * 1000 + np.arange(len(arrays["edge_time"])) % 997
    partita.ingest(arrays, tmp_path / "g", undirected=True, split_times=("250000", "390000"))
    settings = {**SETTINGS, "epochs": 1, "eval_every": 0}
    for negatives in (0, 9):
        run = tmp_path / f"run-{negatives}"
        partita.Trainer(tmp_path / "g", out=run, **settings, eval_negatives=negatives).fit()
        assert ("--eval-negatives takes some" in (run / "metrics.jsonl").read_text()) == (negatives == 0)
