"""Runs on a device against runs on the host: the same picks, the same model up to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typed_graphs import typed_store

import partita
from partita.comm.cuda_streams import Streams
from partita.core.keys import fold
from partita.graph.store import GraphStore
from partita.parallel.graph_placement import place_on_device
from partita.runs.checkpoint import latest_checkpoint
from partita.sample.device import edge_bytes, on_device
from partita.sample.topology import LocalTopology
from partita.setup.inputs import open_rows
from partita.setup.topology import mapped_topology
from partita.testing.graphs import small_random_store
from partita.train.pipeline import Pipeline, PipelineStage

SETTINGS = {"layers": 2, "hidden": 16, "fanout": "4,3", "batch_size": 200, "epochs": 2, "seed": 5,
    "precision": "float64"}  # fmt: skip
MODELS = [
    {},
    {"aggregator": "max", "input_dropout": 0.2},
    {"model": "gcn", "cache": "64KiB", "normalize_features": True},
    {"model": "gat", "heads": 4, "attn_dropout": 0.3, "topology_cache": "16KiB"},
    {"model": "gin", "optimizer": "sgd", "lr": 0.001, "prefetch": 0},
]

TYPED = [
    {"model": "rgcn", "cache": "1MiB", "input_dropout": 0.1},
    {"model": "hgt", "cache": "600B", "normalize_features": True},
    {"model": "rgat", "fanout": "cites=3,2 *=2,1", "topology_cache": "1KiB", "optimizer": "sgd"},
]


ALONE = {"task": "links", "model": "none", "hidden": 8, "batch_size": 300, "epochs": 2, "seed": 5, "negatives": 6,
    "held_out": "0.1,0.1", "precision": "float64"}  # fmt: skip
LINKS = [
    {**SETTINGS, "task": "links", "held_out": "0.1,0.1", "cache": "64KiB", "loss": "bpr", "topology_cache": "16KiB"},
    {**SETTINGS, "task": "links", "held_out": "0.1,0.1", "model": "gcn", "embed": "5", "decoder": "mlp"},
    {**ALONE, "decoder": "complex", "embed_optimizer": "adagrad", "clip_norm": 0.5, "reciprocal": True},
    {**ALONE, "decoder": "rotate", "negative_sampler": "degree", "embed_memory": "16KiB"},
    {**ALONE, "decoder": "distmult", "negative_sampler": "all", "negatives": 0},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 2000, 12000)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of the model, and learnt rows with what their optimizer remembers."""
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    files = [latest / "model.safetensors", *latest.glob("learnt*.safetensors")]
    return {name: value for file in files for name, value in load_file(file).items()}


def same(run: Path, other: Path) -> None:
    found = weights(run)
    for name, value in weights(other).items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("more", MODELS, ids=lambda more: more.get("model", "sage"))
def test_a_run_on_the_device_is_that_of_the_host(tmp_path, store, device, more) -> None:
    host = {name: value for name, value in more.items() if name != "topology_cache"}
    partita.Trainer(store, out=tmp_path / "host", **SETTINGS, **host).fit()
    partita.Trainer(store, out=tmp_path / "device", device=device, **SETTINGS, **more).fit()
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize("more", TYPED, ids=lambda more: more["model"])
def test_a_run_on_a_typed_graph(tmp_path, device, more) -> None:
    settings = {**SETTINGS, "batch_size": 8, "fanout": "3,2", **more}
    typed_store(tmp_path / "g")
    store = GraphStore.open(tmp_path / "g.whole")
    partita.Trainer(store, out=tmp_path / "host", **{**settings, "topology_cache": None}).fit()
    partita.Trainer(store, out=tmp_path / "device", device=device, **settings).fit()
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize("more", [{"sampler": "layer", "layer_budget": "60,40"}, {"sampler": "walk", "fanout": "4,3"}])
def test_what_the_host_draws(tmp_path, store, device, more) -> None:
    settings = {**{name: value for name, value in SETTINGS.items() if name != "fanout"}, **more}
    partita.Trainer(store, out=tmp_path / "host", **settings).fit()
    partita.Trainer(store, out=tmp_path / "device", device=device, **settings).fit()
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize(
    "more",
    [{}, {"cache": "64KiB"}, {"model": "gat", "heads": 4, "topology_cache": "16KiB", "cache": "64KiB"}],
    ids=["sample", "load", "edges in two places"],
)
def test_stages_on_streams_of_their_own_change_nothing(tmp_path, store, device, more) -> None:
    settings = {**SETTINGS, "batch_size": 50, "epochs": 4, **more}
    partita.Trainer(store, out=tmp_path / "one", device=device, **settings, prefetch=0).fit()
    for prefetch in (1, 3):
        run = tmp_path / str(prefetch)
        partita.Trainer(store, out=run, device=device, **settings, prefetch=prefetch).fit()
        found = weights(run)
        assert all(torch.equal(found[name], value) for name, value in weights(tmp_path / "one").items())


def test_a_stage_works_on_a_stream_of_its_own(device) -> None:
    streams, there = Streams(torch.device(device, 0)), torch.device(device, 0)
    rows = torch.arange(2**20, device=there)

    def sample(step: int, _: None) -> torch.Tensor:
        assert torch.cuda.current_stream() != torch.cuda.default_stream()
        torch.cuda._sleep(2_000_000)  # who does not wait would read what is not there yet
        return rows * step

    stages = [PipelineStage("sample", sample), PipelineStage("load", lambda _, made: made + rows)]
    torch.cuda._sleep(20_000_000)
    rows += 1
    with Pipeline(stages, 0, 40, 2, streams=streams) as pipeline:
        totals = []
        for _ in range(40):
            made = pipeline.take()
            torch.cuda._sleep(2_000_000)  # the host goes on, and lets go of what is still to be summed
            totals.append(made[:1024].sum())
            del made
    assert [int(total) for total in totals] == [(step + 1) * 1024 * 1025 // 2 for step in range(40)]


@pytest.mark.parametrize("settings", LINKS, ids=["features", "both", "rows", "files", "all"])
def test_a_run_on_links(tmp_path, store, device, settings) -> None:
    host = {name: value for name, value in settings.items() if name != "topology_cache"}
    wanted = partita.Trainer(store, out=tmp_path / "host", **host).fit()
    found = partita.Trainer(store, out=tmp_path / "device", device=device, **settings).fit()
    same(tmp_path / "device", tmp_path / "host")
    for split, metrics in wanted.metrics.items():
        assert found.metrics[split] == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize("strategy", ["gdp", "dnp"])
def test_two_workers_on_links(tmp_path, store, device, strategy) -> None:
    settings = LINKS[1]
    partita.Trainer(store, out=tmp_path / "host", **settings).fit()
    partita.Trainer.launch(
        store.path, out=tmp_path / "device", device=device, workers=2, strategy=strategy, **settings
    )  # fmt: skip
    same(tmp_path / "device", tmp_path / "host")


def test_bf16_trains(tmp_path, store, device) -> None:
    settings = {**SETTINGS, "precision": "bf16"}
    summary = partita.Trainer(store, out=tmp_path / "run", device=device, **settings).fit()
    assert summary.status == "finished"


@pytest.mark.parametrize("strategy", ["gdp", "nfp"])
def test_two_workers(tmp_path, store, device, strategy) -> None:
    partita.Trainer(store, out=tmp_path / "host", **SETTINGS).fit()
    partita.Trainer.launch(
        store.path, out=tmp_path / "device", device=device, workers=2, strategy=strategy, **SETTINGS
    )  # fmt: skip
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("share", [0, 3, 1])
def test_edges_in_two_places(store, device, share, pin) -> None:
    local, there = LocalTopology(store), torch.device(device, 0)
    found = on_device(local, there, edge_bytes(local) // share if share else 0, pin=pin)
    dst = torch.randperm(store.num_nodes)[:500].to(local.id_dtype)
    wanted, drawn = local.sample(dst, fold(1, 2), 4), found.sample(dst.to(there), fold(1, 2), 4)
    assert torch.equal(drawn.indptr.cpu(), wanted.indptr)
    assert torch.equal(drawn.indices.cpu(), wanted.indices)


def test_rows_are_pinned_where_they_fit(store, device) -> None:
    config = partita.Config.make(SETTINGS)
    placed = place_on_device(
        mapped_topology(store, config),
        open_rows(store, config),
        torch.device(device, 0),
        workers=1,
        edges=None,
        cache=0,
    )
    assert placed.rows.home.x.is_pinned()
    assert not placed.notes
