"""Runs on a device, which is simulated: the model of the host, and what is said where it does not go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import simulated_device
import torch
from gpu_imports import gpu_kernels
from safetensors.torch import load_file
from simulated_device import DEVICE, DeviceTensor, launch_on_the_device, simulated
from simulated_streams import checked_streams
from typed_graphs import typed_store

import partita
from partita.comm import device as devices
from partita.comm.context import Context
from partita.comm.group import Group
from partita.core.errors import ConfigError, ResourceError
from partita.core.mesh import Mesh
from partita.core.protocols import Inputs
from partita.core.records import Counts
from partita.graph.store import GraphStore
from partita.kernels import memory
from partita.parallel import graph_placement
from partita.parallel.engine import Engine
from partita.runs.checkpoint import TrainState, latest_checkpoint
from partita.sample import device as device_topology
from partita.sample.device import HostDraws
from partita.setup import learnt
from partita.tasks.nodes import NodeTask
from partita.testing.graphs import small_random_store
from partita.train import team
from partita.train.pipeline import Pipeline
from partita.train.team import PURPOSES

SETTINGS = {"layers": 2, "hidden": 8, "fanout": "3,2", "batch_size": 40, "epochs": 2, "seed": 5, "prefetch": 0,
    "precision": "float64"}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> GraphStore:
    return small_random_store(tmp_path_factory.mktemp("stores") / "g", 120, 700)


@pytest.fixture
def context(monkeypatch) -> Iterator[Context]:
    """A worker that computes on the simulated device, of which a gigabyte is free."""
    monkeypatch.setattr(team, "choose", lambda name: DEVICE if name in ("cuda", "auto") else torch.device(name))
    for module in (graph_placement, learnt):
        monkeypatch.setattr(module, "free_bytes", lambda device: 2**30)
    for module in (memory, device_topology):
        monkeypatch.setattr(module, "is_pinned", simulated_device.is_pinned)
    for module in (graph_placement, device_topology):
        monkeypatch.setattr(module, "pinned", simulated_device.pin)
    with gpu_kernels(interpreted=True):
        launch_on_the_device(monkeypatch)
        with simulated():
            yield Context(Mesh.of(0, 1, 1), device=DEVICE, purposes=PURPOSES)


@pytest.fixture
def threads_too(monkeypatch) -> None:
    """The device is simulated on the threads of pipelines as well."""
    run = Pipeline._run

    def on_the_device(self: Pipeline, *arguments: object) -> None:
        with simulated():
            run(self, *arguments)

    monkeypatch.setattr(Pipeline, "_run", on_the_device)


def weights(run: Path) -> dict[str, torch.Tensor]:
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return load_file(latest / "model.safetensors")


def same(run: Path, other: Path) -> None:
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-7, atol=1e-9)


def notes(run: Path) -> list[str]:
    events = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [event["text"] for event in events if event["event"] == "note"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": "gcn", "cache": "2KiB", "normalize_features": True},
        {"model": "gin", "cache": "1MiB", "normalize_features": True},
        {"model": "gat", "heads": 2, "topology_cache": "2KiB", "optimizer": "sgd"},
    ],
)
def test_a_run_on_the_device_is_that_of_the_host(tmp_path, store, context, more) -> None:
    host = partita.Trainer(store, out=tmp_path / "host", **SETTINGS, **{**more, "topology_cache": None}).fit()
    trainer = partita.Trainer(store, out=tmp_path / "device", context=context, device="cuda", **SETTINGS, **more)
    assert all(isinstance(parameter, DeviceTensor) for parameter in trainer.job.model.parameters())
    device = trainer.fit()
    same(tmp_path / "device", tmp_path / "host")
    assert device.record["device"] == DEVICE.type
    assert host.record["device"] == "cpu"
    for split, metrics in host.metrics.items():
        assert device.metrics[split] == pytest.approx(metrics, rel=1e-6)
    assert any("have their edges on the device" in note for note in notes(tmp_path / "device")) == (
        "topology_cache" in more
    )


@pytest.mark.parametrize(
    "more",
    [
        {"model": "rgcn", "cache": "1MiB", "input_dropout": 0.1},
        {"model": "hgt", "cache": "600B", "normalize_features": True},
        {"model": "rgat", "fanout": "cites=3,2 *=2,1", "topology_cache": "1KiB", "optimizer": "sgd"},
    ],
)
def test_a_run_on_a_typed_graph(tmp_path, context, more) -> None:
    settings = {**SETTINGS, "batch_size": 8, **more}
    typed_store(tmp_path / "g")
    store = GraphStore.open(tmp_path / "g.whole")
    host = partita.Trainer(store, out=tmp_path / "host", **{**settings, "topology_cache": None}).fit()
    device = partita.Trainer(store, out=tmp_path / "device", context=context, device="cuda", **settings).fit()
    same(tmp_path / "device", tmp_path / "host")
    for split, metrics in host.metrics.items():
        assert device.metrics[split] == pytest.approx(metrics, rel=1e-6)
    assert device.record["counts"]["sampled_edges"] == host.record["counts"]["sampled_edges"]
    assert any("have their edges on the device" in note for note in notes(tmp_path / "device")) == (
        "topology_cache" in more
    )


def test_rows_that_all_fit_are_summed_where_they_lie(tmp_path, store, context) -> None:
    def level_0(size: str) -> Inputs:
        trainer = partita.Trainer(
            store, out=tmp_path / size, context=context, device="cuda", cache=size, **SETTINGS
        )  # fmt: skip
        return trainer.job.views.engine.inputs

    assert isinstance(level_0("1MiB").column.x, DeviceTensor)
    assert level_0("2KiB").prefetchable
    assert simulated_device.is_pinned(level_0("0").column.x)


def test_memory_that_may_not_be_pinned_is_read_by_the_host(tmp_path, store, context, monkeypatch) -> None:
    monkeypatch.setattr(graph_placement, "available_bytes", lambda workers: 0)
    settings = {**SETTINGS, "epochs": 1}
    partita.Trainer(store, out=tmp_path / "host", **settings).fit()
    partita.Trainer(
        store, out=tmp_path / "device", context=context, device="cuda", topology_cache="2KiB", **settings
    ).fit()  # fmt: skip
    same(tmp_path / "device", tmp_path / "host")
    said = notes(tmp_path / "device")
    assert any("are drawn by the host" in note for note in said)
    assert any("the host gathers input rows" in note for note in said)


def test_a_run_goes_on_elsewhere(tmp_path, store, context) -> None:
    partita.Trainer(store, out=tmp_path / "host", **SETTINGS).fit()
    first = {**SETTINGS, "epochs": 1}
    partita.Trainer(store, out=tmp_path / "a", context=context, device="cuda", **first).fit()
    partita.Trainer.resume(tmp_path / "a", device="cpu", epochs=2).fit()
    partita.Trainer(store, out=tmp_path / "b", **first).fit()
    partita.Trainer.resume(tmp_path / "b", context=context, device="cuda", epochs=2).fit()
    same(tmp_path / "a", tmp_path / "host")
    same(tmp_path / "b", tmp_path / "host")


def test_what_does_not_fit_says_how_much_would(tmp_path, store, context, monkeypatch) -> None:
    monkeypatch.setattr(graph_placement, "free_bytes", lambda device: 5000)

    def refused(**more: object) -> str:
        with pytest.raises(ResourceError) as error:
            partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", **SETTINGS, **more)
        return str(error.value)

    free = 5000 - 8 * 121 - (4 + 4) * 120  # less where rows begin, self loops, and a table to number sources with
    assert "cache is 1,048,576 bytes" in refused(cache="1MiB")
    assert f"only {free:,} are free" in refused(cache="1MiB")
    monkeypatch.setattr(graph_placement, "free_bytes", lambda device: 2000)
    assert "topology_cache is 2,000 bytes" in refused(topology_cache=2000)
    monkeypatch.setattr(graph_placement, "free_bytes", lambda device: 500)
    assert "the columns of 120 nodes" in refused()


def test_seeds_that_are_no_nodes_do_not_go_to_the_device(tmp_path, store, context, monkeypatch) -> None:
    monkeypatch.setattr(NodeTask, "seeds", lambda self, split: torch.tensor([3, -1]))
    with pytest.raises(IndexError, match=r"the split .train. of .*: -1 to 3, but there are 120 rows"):
        partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", **SETTINGS)


ROWS = {"task": "links", "model": "none", "hidden": 8, "batch_size": 60, "epochs": 2, "seed": 5, "negatives": 6,
    "held_out": "0.1,0.1", "precision": "float64"}  # fmt: skip
LINKS = [
    {
        "task": "links",
        **SETTINGS,
        "model": "sage",
        "held_out": "0.1,0.1",
        "cache": "2KiB",
        "loss": "bpr",
        "eval_every": 1,
        "prefetch": 2,
    },
    {
        "task": "links",
        **SETTINGS,
        "held_out": "0.1,0.1",
        "model": "gcn",
        "message_share": 0.5,
        "embed": "5",
        "decoder": "mlp",
    },
    {**ROWS, "decoder": "complex", "embed_optimizer": "adagrad", "clip_norm": 0.5, "reciprocal": True},
    {**ROWS, "decoder": "complex", "clip_norm": 0.5, "negatives": 20},
    {**ROWS, "decoder": "rotate", "negative_sampler": "degree", "prefetch": 0, "embed_memory": "2KiB"},
    {**ROWS, "embed_optimizer": "sgd", "embed_lr": 0.1},
]


@pytest.mark.parametrize("settings", LINKS, ids=["features", "both", "adagrad", "adam", "files", "sgd"])
def test_a_run_on_links(tmp_path, store, context, threads_too, settings) -> None:
    host = partita.Trainer(store, out=tmp_path / "host", **settings).fit()
    with checked_streams() as checker:
        device = partita.Trainer(store, out=tmp_path / "device", context=context, device="cuda", **settings).fit()
        checker.host_waits_for(checker.default)
    assert checker.problems == []
    same(tmp_path / "device", tmp_path / "host")
    learns = "embed" in settings or settings["model"] == "none"
    assert rows_of(tmp_path / "host").keys() == rows_of(tmp_path / "device").keys()
    assert bool(rows_of(tmp_path / "host")) == learns
    for name, value in rows_of(tmp_path / "host").items():
        torch.testing.assert_close(rows_of(tmp_path / "device")[name], value, rtol=1e-7, atol=1e-9)
    assert host.metrics.keys() == device.metrics.keys() == {"val", "test"}
    for split, metrics in host.metrics.items():
        assert device.metrics[split] == pytest.approx(metrics, rel=1e-6)


@pytest.mark.parametrize(("free", "more", "there"), [
    (2**30, {}, True), (30_000, {}, False), (2**30, {"embed_memory": "1MiB"}, False),
], ids=["room", "no room", "in host memory by name"])  # fmt: skip
def test_where_learnt_rows_are(tmp_path, store, context, monkeypatch, free, more, there) -> None:
    """120 rows of 8 float64 columns, and two moments: 23 KiB."""
    monkeypatch.setattr(learnt, "free_bytes", lambda device: free)
    trainer = partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", **ROWS, **more)
    (table,) = trainer.job.learnt.tables.values()
    assert table.held.read(torch.arange(3)).device.type == (DEVICE.type if there else "cpu")
    assert (table.held.num_bytes == 0) == there
    assert all(array.device.type == "cpu" for array in table.held.piece(0, 3).values())


def test_without_layers_no_edges_go_to_the_device(tmp_path, store, context) -> None:
    trainer = partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", **ROWS)
    assert isinstance(trainer.job.views.engine.worker.topology, HostDraws)


def rows_of(run: Path) -> dict[str, torch.Tensor]:
    """Learnt rows, and what their optimizer remembers."""
    latest = latest_checkpoint(run / "checkpoints")
    assert latest is not None
    return {
        f"{file.name}/{name}": value
        for file in latest.glob("learnt*.safetensors")
        for name, value in load_file(file).items()
    }


def test_views_are_refused(tmp_path, store, context) -> None:
    with pytest.raises(ConfigError, match="views 'all' train on the CPU only"):
        partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", views="all", **SETTINGS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "more", [{"sampler": "layer", "layer_budget": "60,40"}, {"sampler": "walk"}, {"sampler": "labor"}]
)
def test_samplers_without_kernels_for_a_device_draw_on_the_host(tmp_path, store, context, more) -> None:
    given = {**SETTINGS, **more}
    if "layer_budget" in more:
        del given["fanout"]
    partita.Trainer(store, out=tmp_path / "host", **given).fit()
    partita.Trainer(store, out=tmp_path / "device", context=context, device="cuda", **given).fit()
    same(tmp_path / "device", tmp_path / "host")


@pytest.mark.parametrize(
    "more",
    [
        {"cache": "2KiB"},
        {"model": "gat", "heads": 2, "topology_cache": "2KiB", "input_dropout": 0.2},
        {"model": "gcn", "cache": "2KiB", "sampler": "layer", "layer_budget": "60,40", "fanout": None},
    ],
)
def test_stages_in_threads_and_on_streams_of_their_own(tmp_path, store, context, threads_too, more) -> None:
    settings = {name: value for name, value in {**SETTINGS, **more, "prefetch": 2}.items() if value is not None}
    host = {name: value for name, value in settings.items() if name != "topology_cache"}
    partita.Trainer(store, out=tmp_path / "host", **host).fit()
    with checked_streams() as checker:
        partita.Trainer(store, out=tmp_path / "device", context=context, device="cuda", **settings).fit()
        checker.host_waits_for(checker.default)
    same(tmp_path / "device", tmp_path / "host")
    assert checker.problems == []
    loads = "cache" in more
    assert sum(call.startswith("stream") for call in checker.calls) == 2 + loads  # not one more in the second epoch
    steps, epochs, threads = 2, 2, 2 + loads
    assert sum(call.endswith("waits") for call in checker.calls) == epochs * (steps * (1 + loads) + threads)


def test_without_a_pipeline_there_is_one_stream(tmp_path, store, context) -> None:
    with checked_streams() as checker:
        partita.Trainer(
            store, out=tmp_path / "run", context=context, device="cuda", **{**SETTINGS, "epochs": 1}
        ).fit()  # fmt: skip
    assert (checker.calls, checker.problems) == ([], [])


def test_stages_whose_exchanges_occupy_the_device_share_the_stream_of_the_trainer(
    tmp_path, store, context, monkeypatch
) -> None:
    trainer = partita.Trainer(store, out=tmp_path / "run", context=context, device="cuda", cache="2KiB", **SETTINGS)

    def apart(workers: int, occupies: bool, collective: bool) -> list[bool]:
        views = trainer.job.views
        monkeypatch.setattr(trainer.job.team, "size", workers)
        monkeypatch.setattr(Group, "occupies", occupies)
        monkeypatch.setattr(Engine, "collective", collective)
        return [stage.apart for stage in views.enter(None, TrainState(counts=Counts.zero(2))).stages()]

    assert apart(2, True, True) == [False, False]
    assert apart(2, True, False) == [True, True]
    assert apart(2, False, True) == [True, True]
    assert apart(1, False, True) == [True, True]


def test_another_device_than_that_of_the_context_is_refused(tmp_path, store, context) -> None:
    with pytest.raises(ConfigError, match="device=cpu, but this worker computes on meta"):
        partita.Trainer(store, out=tmp_path / "run", context=context, **SETTINGS)


@pytest.fixture
def two_devices(monkeypatch) -> list[torch.device]:
    """What PyTorch says on a machine of two devices; the list of those that were made current."""
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    return taken


def test_every_worker_of_a_host_takes_a_device(two_devices) -> None:
    pytest.importorskip("triton")
    for name in ("cuda", "auto"):
        assert [str(devices.take(name, worker)) for worker in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [devices.sharers(torch.device("cuda:0"), workers) for workers in (1, 2, 3, 5)] == [1, 1, 2, 3]
    assert len(two_devices) == 6
    with pytest.raises(ConfigError, match="no device cuda:2, only 2"):
        devices.take("cuda:2", 0)


def test_no_device_and_no_triton(monkeypatch, two_devices) -> None:
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    assert devices.choose("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="needs triton") as error:
        devices.choose("cuda")
    assert "pip install triton" in str(error.value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.choose("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device"):
        devices.choose("cuda")
