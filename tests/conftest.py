"""What all tests share: shape checks on, no leaks, and where the real graphs are."""

from __future__ import annotations

import os

# As the command does: threads that spin while they wait make small steps very slow on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import gc
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
import shape_checks
import torch
from cases import LONG, listed_tests, repeated
from commands import FORKS, Commands
from hypothesis import settings

# Shape and dtype annotations are enforced while testing. The kernels are left out: numba compiles plain functions.
CHECKED = (
    "comm",
    "core",
    "features",
    "graph",
    "infer",
    "isolated",
    "nn",
    "parallel",
    "partitioning",
    "runs",
    "sample",
    "setup",
    "sources",
    "tasks",
    "train",
)
shape_checks.install(f"partita.{name}" for name in CHECKED)

# Compiling kernels makes a first example slow; how long a test may take is pytest's business.
settings.register_profile("partita", deadline=None)
settings.load_profile("partita")

# A shell starts background jobs with Ctrl-C ignored, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DATA = Path(os.environ.get("PARTITA_DATA", Path(__file__).parents[2] / "shared" / "data"))
# The kernels' thread pool lives as long as the process.
KEPT_THREADS = ("partita-kernel",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``full`` what ``make test`` leaves out, and as ``slow`` what ``make test-all`` does (:mod:`cases`)."""
    quick = [item for item in items if item.get_closest_marker("slow") is None]
    names = [item.nodeid.removesuffix("]").partition("[")[::2] for item in quick]
    listed, again = listed_tests(), repeated(names)
    for place, (name, _) in enumerate(names):
        if name in listed and place in again:
            quick[place].add_marker("slow")
        elif listed.get(name) == LONG or place in again:
            quick[place].add_marker("full")


def pytest_collection_finish() -> None:
    """What was imported and collected stays, and need not be looked at again in every collection of garbage."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Libraries that count their objects at the end would report those that are kept as leaks."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real graphs; the test is skipped where there is none."""
    if not (DATA / "manifest.json").is_file():
        pytest.skip(f"no real graphs in {DATA}; set PARTITA_DATA to the folder that holds them")
    return DATA


@pytest.fixture(scope="session")
def libraries() -> Iterator[None]:
    """What :mod:`commands` needs. It lasts for the session, so no test leaves it behind."""
    with Commands() if FORKS else nullcontext():
        yield


@pytest.fixture(scope="session", autouse=True)
def _workers_ready(_temporary_files: None) -> Iterator[None]:
    """Workers of all tests share what was imported once."""
    from partita.comm.local import workers_ready

    with workers_ready("partita.train.trainer"):
        yield


@pytest.fixture(scope="session", autouse=True)
def _temporary_files() -> Iterator[None]:
    """Whatever libraries leave in the temporary directory (PyG writes modules there), and what is kept of this machine
    for the next plan, goes when the session ends."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="partita-tests-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        tempfile.tempdir = folder
        yield
        tempfile.tempdir = before


@pytest.fixture(autouse=True)
def _checks() -> None:
    """Every test checks the annotations of what it calls."""
    shape_checks.begin_test()


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """What a test draws from torch's generator is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """A test that leaves a thread, a process or an environment variable behind fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    threads = set(threading.enumerate())
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [
        thread.name
        for thread in set(threading.enumerate()) - threads
        if not thread.daemon and not thread.name.startswith(KEPT_THREADS)
    ]
    assert not left, f"threads left running: {left}"
    alive = {child.pid for child in psutil.Process().children(recursive=True)} - children
    assert not alive, f"processes left running: {alive}"
    now = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    changed = {name for name in environment.keys() | now.keys() if environment.get(name) != now.get(name)} - {
        "KINETO_LOG_LEVEL",
        "TORCHINDUCTOR_CACHE_DIR",
    }
    assert not changed, f"environment changed: {sorted(changed)}"
