"""What a process may still take: of the machine, its control groups, and its own limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.core import memory

MIB = 2**20


@pytest.fixture
def linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for /proc/self and the mounted hierarchies, on a machine with 1 TiB free."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**40}))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/status").write_text("Name:\tpython\nVmSize:\t 2048 kB\nVmData:\t 1024 kB\n")
    return tmp_path


def mounted(linux: Path, groups: str, *mounts: str) -> None:
    (linux / "proc/cgroup").write_text(groups)
    (linux / "proc/mountinfo").write_text("".join(f"{mount}\n" for mount in mounts))


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def v2(linux: Path, root: str = "/") -> str:
    return f"30 20 0:26 {root} {linux}/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def test_the_limit_of_the_own_group_counts_though_it_is_not_the_root(linux: Path) -> None:
    mounted(linux, "0::/user.slice/job\n", v2(linux))
    group(linux / "cgroup/user.slice", memory__max="max", memory__current=900 * MIB)
    group(linux / "cgroup/user.slice/job", memory__max=400 * MIB, memory__current=100 * MIB)
    found = memory.available_memory()
    assert found.bytes == 300 * MIB
    assert "user.slice/job" in found.limit
    assert memory.available_bytes(3) == 100 * MIB


def test_the_limit_of_a_group_above_counts_where_it_leaves_less(linux: Path) -> None:
    mounted(linux, "0::/user.slice/job\n", v2(linux))
    group(linux / "cgroup/user.slice", memory__max=1000 * MIB, memory__current=950 * MIB)
    group(linux / "cgroup/user.slice/job", memory__max=400 * MIB, memory__current=100 * MIB)
    assert memory.available_bytes() == 50 * MIB


def test_pages_of_files_do_not_count_as_used(linux: Path) -> None:
    mounted(linux, "0::/job\n", v2(linux))
    stat = f"anon {90 * MIB}\ninactive_file {100 * MIB}\nactive_file {50 * MIB}"
    group(linux / "cgroup/job", memory__max=400 * MIB, memory__current=300 * MIB, memory__stat=stat)
    assert memory.available_bytes() == 250 * MIB


def test_version_1_beside_an_empty_hierarchy_of_version_2(linux: Path) -> None:
    first = f"31 20 0:27 / {linux}/one/memory rw - cgroup cgroup rw,memory"
    other = f"32 20 0:28 / {linux}/one/cpu rw - cgroup cgroup rw,cpu"
    mounted(linux, "5:cpu:/elsewhere\n4:memory:/a/b\n0::/\n", first, other, v2(linux))
    files = {"memory__limit_in_bytes": 2**63 - 4096, "memory__usage_in_bytes": 5 * MIB}
    group(linux / "one/memory/a/b", **files)
    (linux / "one/memory/a/memory.limit_in_bytes").write_text(f"{64 * MIB}\n")
    (linux / "one/memory/a/memory.usage_in_bytes").write_text(f"{60 * MIB}\n")
    (linux / "one/memory/a/memory.stat").write_text(f"total_inactive_file {8 * MIB}\ntotal_active_file 0\n")
    group(linux / "one/cpu/elsewhere", memory__limit_in_bytes=1, memory__usage_in_bytes=1)
    assert memory.available_bytes() == 12 * MIB


@pytest.mark.parametrize(("path", "root"), [("/docker/0af3", "/docker/0af3"), ("/../../other", "/"), ("/", "/")])
def test_in_a_container_the_group_is_the_one_that_is_mounted(linux: Path, path: str, root: str) -> None:
    mounted(linux, f"0::{path}\n", v2(linux, root))
    group(linux / "cgroup", memory__max=70 * MIB, memory__current=0)
    assert memory.available_bytes() == 70 * MIB


def test_a_mount_point_may_have_a_blank(linux: Path) -> None:
    mounted(linux, "0::/\n", v2(linux).replace("/cgroup rw", "/control\\040groups rw"))
    group(linux / "control groups", memory__max=7 * MIB, memory__current=0)
    assert memory.available_bytes() == 7 * MIB


def test_without_groups_and_limits_the_machine_decides(linux: Path) -> None:
    assert memory.available_memory() == (2**40, "free memory of the machine")
    assert memory.available_bytes(4) == 2**38


LIMITED = """
import json, resource, sys
from partita.core import memory
found = {}
for name, field in (("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize")):
    kind, before = getattr(resource, name), memory._status(field)
    resource.setrlimit(kind, (before + (100 << 20), resource.RLIM_INFINITY))
    found[name] = memory.available_memory(2)
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
json.dump(found, sys.stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has taken is known on Linux only")
def test_limits_of_a_process_are_its_own_and_what_it_has_taken_counts() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True).stdout)
    for name, (left, limit) in found.items():
        assert 90 * MIB < left <= 100 * MIB
        assert name in limit
