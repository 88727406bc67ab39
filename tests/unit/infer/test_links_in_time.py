"""Ranks, metrics and best neighbors in time by brute force, over rows of graphs that end at each time."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from temporal_steps import until
from timed_links import ALWAYS, NEVER, timed_store, typed_timed_store

import partita
from partita.comm.context import Context
from partita.infer.layerwise import LayerwiseInference
from partita.infer.run import inference_of, open_inference
from partita.runs.load import load_run
from partita.sample.topology import LocalTopology, as_tensor
from partita.tasks.links.metrics import mean_average_precision
from partita.tasks.task import make_task

SETTINGS: dict[str, Any] = {
    "task": "links", "layers": 2, "hidden": 6, "fanout": (-1, -1), "batch_size": 16, "epochs": 2,
    "precision": "float64", "lr": 0.02, "dropout": 0.0,
}  # fmt: skip


class Brute:
    """A run, and all that is said of it by definition."""

    def __init__(self, run: Path) -> None:
        loaded = load_run(run)
        self.store, self.model, config = loaded.store, loaded.model.eval(), loaded.config
        self.task = make_task(config, self.store)
        self.task.attach(self.model)
        self.inference = inference_of(self.model, self.store, config, Context.alone())
        self.inputs = open_inference(self.store, config, Context.alone().mesh)[1]
        self.kinds = self.store.types(np.arange(self.store.num_nodes))
        self.node_time = self.store.node_time
        self._rows = dict[int, torch.Tensor]()

    def rows(self, time: int) -> torch.Tensor:
        """Of all nodes, where no edge is later."""
        if time not in self._rows:
            local = LocalTopology(self.store, types=self.store.schema is not None)
            ended = until(local, as_tensor(self.store.edge_time), time)
            found = LayerwiseInference(self.model, ended, self.inputs)
            self._rows[time] = torch.cat([each.output for each in found.run()]).clone()
        return self._rows[time]

    def there(self, kind: int, time: int) -> list[int]:
        return [node for node in np.flatnonzero(self.kinds == kind).tolist() if self.node_time[node] <= time]

    def targets(self) -> dict[str, set[tuple[int, ...]]]:
        """What is asked about, and when, edge by edge."""
        store, seed_time = self.store, self.store.column("seed_time")
        ends = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
        kinds = np.zeros(store.num_edges, int) if store.edge_type is None else store.edge_type
        found = {"train": set(), "val": set(), "test": set()}
        for source, target, kind, time in zip(
            *(each.tolist() for each in (store.indices, ends, kinds, store.edge_time)), strict=True
        ):
            if source == target or time == ALWAYS:
                continue
            asked = seed_time[source] if seed_time[source] != ALWAYS else time - 1
            if time <= asked or max(self.node_time[source], self.node_time[target]) > asked:
                continue
            found["train" if asked < 14 else "val" if asked < 17 else "test"].add((source, target, kind, int(asked)))
        return found

    def scores(self, side: str, link: tuple[int, ...], candidates: list[int]) -> list[float]:
        rows = self.rows(link[3])
        ends = [rows[[link[0]]].expand(len(candidates), -1), rows[candidates]]
        if side == "head":
            ends = [rows[candidates], rows[[link[1]]].expand(len(candidates), -1)]
        with torch.no_grad():
            return self.model.decoder(*ends, torch.full((len(candidates),), link[2])).tolist()

    def judged(self, split: str, sides: tuple[str, ...]) -> dict[str, float]:
        links, ranks, precision = sorted(self.targets()[split]), [], []
        for side in sides:
            end = {"tail": 1, "head": 0}[side]
            questions = dict[tuple[int, ...], list[int]]()
            for link in links:
                questions.setdefault((*link[:end], *link[end + 1 :]), []).append(link[end])
            for question, answers in questions.items():
                link = (*question[:end], answers[0], *question[end:])
                candidates = self.there(self.kinds[answers[0]], link[3])
                scores = dict(zip(candidates, self.scores(side, link, candidates), strict=True))
                for answer in answers:
                    others = np.array([score for node, score in scores.items() if node not in answers])
                    close = np.abs(others - scores[answer]) <= 1e-5 * abs(scores[answer]) + 1e-6
                    ranks.append(1 + (~close & (others > scores[answer])).sum() + close.sum() / 2)
                if side == "tail":
                    best = sorted(scores, key=lambda node: -scores[node])[:10]
                    hits = [node in answers for node in best]
                    at = [sum(hits[: place + 1]) / (place + 1) for place, hit in enumerate(hits) if hit]
                    precision.append(sum(at) / min(len(answers), 10))
        ranks = np.array(ranks)
        found = {"mrr": (1 / ranks).mean(), **{f"hits@{k}": (ranks <= k).mean() for k in (1, 3, 10)}}
        return {**found, "map@10": np.mean(precision)} if precision else found


CASES = {
    "untyped": {"corrupt": "tail"},
    "sides": {"corrupt": "both", "decoder": "mlp", "temporal_strategy": "last"},
    "typed": {"corrupt": "tail", "embed": "place=3"},
    "heads": {"corrupt": "head", "embed": "place=3", "decoder": "complex"},
}
SIDES = {"tail": ("tail",), "head": ("head",), "both": ("tail", "head")}


@pytest.fixture(scope="module", params=CASES)
def brute(request, tmp_path_factory) -> tuple[str, Path, Brute]:
    folder, case = tmp_path_factory.mktemp("brute"), request.param
    if case in ("untyped", "sides"):
        timed_store(folder / "g", edges=600, parts=2)
        more = {}
    else:
        typed_timed_store(folder / "g", parts=2)
        more = {"split_times": "14,17", "model": "rgcn", "time_encoding": "none"}  # graphs that end know no ages
    partita.Trainer(folder / "g", out=folder / "run", **SETTINGS, **CASES[case], **more).fit()
    return case, folder / "run", Brute(folder / "run")


def test_what_is_asked_about_and_when(brute) -> None:
    found = brute[2]
    wanted = found.targets()
    for split, edges in wanted.items():
        assert {tuple(edge) for edge in found.task.seeds(split).tolist()} == edges
        assert len(found.task.seeds(split)) == len(edges) > 5


def test_metrics(brute) -> None:
    case, run, found = brute
    for split in ("val", "test"):
        metrics = partita.evaluate(run, split=split)
        wanted = found.judged(split, SIDES[CASES[case]["corrupt"]])
        assert {name: metrics[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
        assert ("map@10" in metrics) == (CASES[case]["corrupt"] != "head")
        # As many as there are, or more, are all of them.
        sampled = partita.evaluate(run, split=split, eval_negatives=100)
        assert {name: sampled[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)


def test_the_best_neighbors(brute, tmp_path) -> None:
    case, run, found = brute
    store, typed = found.store, case in ("typed", "heads")
    side = "head" if case == "heads" else "tail"
    relation = 1 if typed else 0  # from authors to papers
    name = {"relation": "wrote"} if typed else {}
    partita.predict_links(run, out=tmp_path / "best.csv", links=4, side=side, **name)
    told = dict[str, list[tuple[str, float]]]()
    with (tmp_path / "best.csv").open() as file:
        for row in csv.DictReader(file):
            told.setdefault(row["node"], []).append((row["neighbor"], float(row["score"])))
    ends = store.schema.ends[relation].tolist() if typed else [0, 0]
    own, other = ends if side == "tail" else ends[::-1]
    seed_time = store.column("seed_time")
    for node in np.flatnonzero(found.kinds == own).tolist():
        time = seed_time[node] if seed_time[node] != ALWAYS else NEVER - 1
        candidates = [each for each in found.there(other, time) if each != node]
        link = (node, node, relation, int(time))
        scores = found.scores(side, link, candidates)
        order = sorted(range(len(candidates)), key=lambda at: -scores[at])[:4]
        given = told.get(str(store.names(np.array([node]))[0]), [])
        assert [score for _, score in given] == pytest.approx([scores[at] for at in order], rel=1e-5)
        assert {name for name, _ in given} <= {str(each) for each in store.names(np.array(candidates))}


def test_pairs_at_the_times_of_their_sources(brute, tmp_path) -> None:
    case, run, found = brute
    store, typed = found.store, case in ("typed", "heads")
    own, other = store.schema.ends[1].tolist() if typed else (0, 0)
    generator, seed_time = np.random.default_rng(1), store.column("seed_time")
    sources, targets = (generator.choice(np.flatnonzero(found.kinds == kind), 40) for kind in (own, other))
    names = zip(store.names(sources), store.names(targets), strict=True)
    (tmp_path / "pairs.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in names))
    given = {"relation": "wrote"} if typed else {}
    partita.predict_links(run, out=tmp_path / "scores.csv", pairs=tmp_path / "pairs.csv", **given)
    with (tmp_path / "scores.csv").open() as file:
        told = [float(row["score"]) for row in csv.DictReader(file)]
    times = np.where(seed_time[sources] == ALWAYS, NEVER - 1, seed_time[sources])
    wanted = [
        found.scores("tail", (source, target, int(typed), time), [target])[0]
        for source, target, time in zip(sources.tolist(), targets.tolist(), times.tolist(), strict=True)
    ]
    assert told == pytest.approx(wanted, rel=1e-5)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 13)), min_size=1, max_size=40, unique=True),
    st.integers(0, 2**32),
)
def test_mean_average_precision_by_its_definition(pairs, seed) -> None:
    """As RelBench computes it: hits among the best ten in their order."""
    scores = np.random.default_rng(seed).permutation(70).reshape(5, 14)
    ranks, precision = [], []
    for question, node in pairs:
        own = scores[question, node]
        others = [each for each in range(14) if (question, each) not in pairs]
        ranks.append(1.0 + sum(scores[question, each] > own for each in others))
    for question in sorted({question for question, _ in pairs}):
        best = sorted(range(14), key=lambda node: -scores[question, node])[:10]
        hits = np.array([(question, node) in pairs for node in best])
        count = sum(each == question for each, _ in pairs)
        at_hits = (np.cumsum(hits) / np.arange(1, 11))[hits]
        precision.append(at_hits.sum() / min(count, 10))
    found = mean_average_precision(np.array(ranks), np.array([question for question, _ in pairs]))
    assert found == pytest.approx(np.mean(precision))
