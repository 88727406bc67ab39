"""Copies of a run on every host: the first host's disk may be lost."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.comm.context import Context
from partita.config import Config
from partita.core.errors import RunError
from partita.testing.graphs import small_random_store
from partita.testing.workers import run_workers
from partita.train.elastic import go_on_or_begin
from partita.train.purposes import PURPOSES

SETTINGS = {
    "layers": 2, "hidden": 8, "fanout": "3,3", "batch_size": 15, "epochs": 3, "strategy": "gsplit", "threads": 1,
    "checkpoint_steps": 2, "copy_checkpoints": True, "prefetch": 0,
}  # fmt: skip
AVERAGE = {"strategy": "gdp", "views": "cyclic", "sync": "model-average", "average_every": 2}


class Crashed(Exception):
    """Stands for any end that saves nothing; on all hosts at once."""


def attempt(context: Context, store: str, out: Path, settings: dict[str, Any], end: int | None) -> list[str]:
    config = Config.make({**SETTINGS, **settings})
    trainer = go_on_or_begin(store, out=out, config=config, given=config.model_fields_set, context=context)
    original = trainer._step

    def cut(*arguments):
        if (
            end is not None
            and trainer._state.epoch * trainer.job.views.steps(trainer._state) + trainer._state.step == end
        ):
            raise Crashed
        return original(*arguments)

    trainer._step = cut  # type: ignore[method-assign]
    with suppress(Crashed):
        trainer.fit()
    return trainer.notes


def files(run: Path) -> dict[str, bytes]:
    """What is trained and logged, but for how long it took."""
    found = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found["metrics"] = json.dumps([line["loss"] for line in lines if line["event"] == "epoch"]).encode()
    return found


def lose_and_go_on(context: Context, store: str, folder: str, settings: dict[str, Any], end: int) -> dict[str, Any]:
    """On two hosts: a run in a shared folder; one in two folders that ends early; the first of these is lost."""
    root, host = Path(folder), context.mesh.host
    attempt(context, store, root / "shared", settings, None)
    own = root / f"host{host}"
    attempt(context, store, own, settings, end)
    context.check_same("run", {})  # both have ended
    found = context.agree(lambda: {"copied": files(root / "host0") == files(root / "host1")})
    context.agree(lambda: shutil.rmtree(root / "host0"))
    found["notes"] = attempt(context, store, own, settings, None)
    found["same"] = context.agree(lambda: files(root / "host0") == files(root / "shared"))
    context.agree(lambda: (root / "letters").mkdir() or (root / "letters" / "letter.txt").write_text("mine"))
    try:
        attempt(context, store, root / ("new" if host == 0 else "letters"), settings, None)
    except RunError as error:
        found["refused"] = str(error)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    whole = small_random_store(folder / "g", 200, 1200)
    partita.partition(whole, folder / "parts", parts=2, algorithm="spring")
    return folder / "parts"


@pytest.mark.parametrize(("settings", "end"), [({}, 13), (AVERAGE, 8)], ids=["gsplit", "average"])
def test_the_disk_of_the_first_host_is_lost(store, tmp_path, settings, end) -> None:
    first, second = run_workers(
        lose_and_go_on, 2, str(store), str(tmp_path), settings, end, hosts=2, purposes=PURPOSES, checked=False,
        ordered=None, timeout=200,
    )  # fmt: skip
    assert first["copied"]
    assert first["notes"][0] == "the run was brought here from host 1"
    assert first["notes"][1].startswith("goes on after ")
    assert first["same"]
    for each in (first, second):
        assert "letters: already exists, and is not a run folder" in each["refused"]
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["letter.txt"]
