"""A writer with a resume key: what was finished before a kill or Ctrl-C is found again, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from partita.core.errors import ResourceError, StoreError
from partita.graph import columns, journal, writer
from partita.graph.store import GraphStore
from partita.graph.writer import StoreWriter
from partita.testing.graphs import formula_store

pytestmark = pytest.mark.skipif(writer.fcntl is None, reason="needs file locks")

COLUMNS = {
    "indptr": np.array([0, 1, 3], dtype=np.int64),
    "indices": np.array([1, 0, 0], dtype=np.int32),
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
}


def write_missing(made, *names):
    """Write columns that are not there yet; returns those written now."""
    missing = [name for name in names if not made.is_done(name)]
    for name in missing:
        made.write(name, COLUMNS[name])
    return missing


def finish(made):
    made.finish(num_nodes=2, num_edges=3)


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


@contextmanager
def left_by(error, path, *, key="k", **options):
    """A writer that is left by an error after the body."""
    try:
        with StoreWriter(path, resume_key=key, **options) as made:
            yield made
            raise error
    except (type(error), ResourceError):
        pass


def interrupt(path, *names, key="k", keep=None):
    error = KeyboardInterrupt()
    with left_by(error, path, key=key) as made:
        write_missing(made, *names)
        for name, array in (keep or {}).items():
            made.keep(name, array)
    return made, error


def reference(tmp_path):
    with StoreWriter(tmp_path / "reference") as made:
        write_missing(made, *COLUMNS)
        finish(made)
    return contents(tmp_path / "reference")


def test_an_interrupted_writer_continues_and_makes_the_same_store(tmp_path):
    made, error = interrupt(tmp_path / "store", "indptr", "indices")
    assert made.interrupted
    assert "the same command continues" in " ".join(error.__notes__)
    (left,) = tmp_path.iterdir()
    assert left.name == ".store.partial-resume-k"
    before = {name: (left / f"{name}.npy").stat() for name in ("indptr", "indices")}
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        assert made.continued
        assert [name for name in COLUMNS if made.is_done(name)] == ["indptr", "indices"]
        assert write_missing(made, *COLUMNS) == ["x"]
        finish(made)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    for name, stat in before.items():
        after = (tmp_path / "store" / f"{name}.npy").stat()
        assert (after.st_ino, after.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert contents(tmp_path / "store") == reference(tmp_path)
    assert (tmp_path / "store").stat().st_mode == (tmp_path / "reference").stat().st_mode


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(1), OSError(28, "no space")])
def test_any_other_error_removes_everything(tmp_path, error):
    interrupt(tmp_path / "store", "indptr")
    with left_by(error, tmp_path / "store") as made:
        write_missing(made, "indices")
        made.append("x", np.float32, (3,))
    assert not made.interrupted
    assert list(tmp_path.iterdir()) == []


def test_a_column_counts_only_when_it_was_closed(tmp_path):
    with left_by(KeyboardInterrupt(), tmp_path / "store") as made:
        write_missing(made, "indptr")
        made.append("indices", np.int32).append(COLUMNS["indices"])
        made.place("x", (2, 3), np.float32).put(0, COLUMNS["x"])
        made.allocate("y", (2,), np.int64)[:] = 1
        (made.scratch / "spill").write_text("x")
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        assert {path.name for path in made.directory.iterdir()} == {"indptr.npy", ".lock", "journal.json", "kept"}
        assert write_missing(made, *COLUMNS) == ["indices", "x"]
        finish(made)
    assert contents(tmp_path / "store") == reference(tmp_path)


def test_every_moment_of_an_interruption_leads_to_the_same_store(tmp_path, monkeypatch):
    """Interrupted before the n-th flush or rename for every n, and continued each time."""
    expected = reference(tmp_path)
    calls = {"left": 0}

    def counting(function):
        def wrapped(*arguments):
            if calls["left"] == 0:
                raise KeyboardInterrupt
            calls["left"] -= 1
            return function(*arguments)

        return wrapped

    for module in (journal, writer):
        monkeypatch.setattr(module, "fsync_path", counting(module.fsync_path))
    monkeypatch.setattr(journal.os, "replace", counting(os.replace))
    attempts = 0
    for moment in range(1000):
        path = tmp_path / f"store{moment}"
        calls["left"] = moment
        try:
            with StoreWriter(path, resume_key="k") as made:
                made.keep("parts", np.arange(5))
                write_missing(made, *COLUMNS)
                finish(made)
        except KeyboardInterrupt:
            calls["left"] = 10_000
            if not path.exists():  # else it came after the store was in its place
                with StoreWriter(path, resume_key="k") as made:
                    assert made.kept("parts") is None or made.kept("parts").tolist() == [0, 1, 2, 3, 4]
                    write_missing(made, *COLUMNS)
                    finish(made)
            attempts += 1
        assert contents(path) == expected
        assert not list(tmp_path.glob(".*"))
        if calls["left"] < 10_000 and attempts <= moment:
            break
    assert attempts > 15


KILL = """
import os, signal, sys
import numpy as np
from partita.graph.writer import StoreWriter
with StoreWriter(sys.argv[1], resume_key="k") as w:
    w.keep("parts", np.arange(3))
    w.write("indptr", np.array([0, 1, 3]))
    column = w.place("x", (2, 3), np.float32)
    column.put(0, np.ones((1, 3), dtype=np.float32))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_continues(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILL, str(tmp_path / "store")], check=False)
    assert done.returncode == -9
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        assert made.kept("parts").tolist() == [0, 1, 2]
        assert write_missing(made, *COLUMNS) == ["indices", "x"]
        finish(made)
    assert contents(tmp_path / "store") == reference(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "reference"}


def test_a_second_process_with_the_key_is_refused(tmp_path):
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        write_missing(made, "indptr")
        with (
            pytest.raises(StoreError, match="another process is writing the same store"),
            StoreWriter(tmp_path / "store", resume_key="k"),
        ):
            pass
        for other in (None, "other"):  # is allowed, and leaves the first alone
            with pytest.raises(RuntimeError), StoreWriter(tmp_path / "store", resume_key=other):
                pass
        assert write_missing(made, *COLUMNS) == ["indices", "x"]
        finish(made)
    assert contents(tmp_path / "store") == reference(tmp_path)


@pytest.mark.parametrize("key", [None, "other"])
def test_what_was_left_under_another_key_is_removed(tmp_path, key):
    interrupt(tmp_path / "store", "indptr")
    interrupt(tmp_path / "else", "indptr")
    with StoreWriter(tmp_path / "store", resume_key=key) as made:
        assert not made.continued
        assert {path.name for path in tmp_path.iterdir()} == {made.directory.name, ".else.partial-resume-k"}
        write_missing(made, *COLUMNS)
        finish(made)


def test_columns_of_another_size_and_damaged_journals_are_not_trusted(tmp_path):
    interrupt(tmp_path / "store", "indptr", "indices")
    left = tmp_path / ".store.partial-resume-k"
    with open(left / "indptr.npy", "ab") as file:
        file.write(b"x")
    with left_by(KeyboardInterrupt(), tmp_path / "store") as made:
        assert not made.is_done("indptr")
        assert not (left / "indptr.npy").exists()
        assert made.is_done("indices")
    good = json.loads((left / "journal.json").read_text())
    for content in ("", "[]", "{", json.dumps({**good, "version": 999})):
        interrupt(tmp_path / "store", "indptr", "indices")
        (left / "journal.json").write_text(content)
        with left_by(KeyboardInterrupt(), tmp_path / "store") as made:
            assert not made.continued
            assert list(left.glob("*.npy")) == []


def test_kept_arrays(tmp_path):
    parts = np.array([2, 0, 1], dtype=np.int32)
    interrupt(tmp_path / "store", keep={"parts": np.zeros(9), "more": np.ones((2, 2))})
    interrupt(tmp_path / "store", keep={"parts": parts})
    left = tmp_path / ".store.partial-resume-k"
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        found = made.kept("parts")
        assert (found.dtype, found.tolist(), found.flags.writeable) == (np.int32, [2, 0, 1], False)
        assert made.kept("more").tolist() == [[1, 1], [1, 1]]
        assert made.kept("unknown") is None
        assert not made.is_done("parts")
        content = bytearray((left / "kept" / "more.npy").read_bytes())
        content[-3] ^= 1
        (left / "kept" / "more.npy").write_bytes(content)
        assert made.kept("more") is None
        write_missing(made, *COLUMNS)
        finish(made)
    assert found.tolist() == [2, 0, 1]
    assert contents(tmp_path / "store") == reference(tmp_path)


def test_without_a_key_nothing_is_kept(tmp_path):
    with left_by(KeyboardInterrupt(), tmp_path / "store", key=None) as made:
        write_missing(made, *COLUMNS)
        made.keep("parts", np.arange(3))
        assert made.kept("parts") is None
        assert not made.is_done("indptr")
        assert not made.continued
    assert not made.interrupted
    assert list(tmp_path.iterdir()) == []


def test_checksums_are_computed_once(tmp_path, monkeypatch):
    interrupt(tmp_path / "store", "indptr", "indices")
    seen = []
    checksum = columns.file_checksum
    monkeypatch.setattr(columns, "file_checksum", lambda path, task=None: seen.append(path.stem) or checksum(path))
    with StoreWriter(tmp_path / "store", resume_key="k") as made:
        write_missing(made, *COLUMNS)
        finish(made)
    assert sorted(seen) == ["part_offsets", "x"]


def test_a_placed_column_is_written_in_any_order_within_its_bounds(tmp_path):
    with StoreWriter(tmp_path / "store") as made:
        write_missing(made, "indptr", "indices")
        column = made.place("x", (2, 3), np.float32)
        column.put(1, COLUMNS["x"][1:])
        column.put(0, COLUMNS["x"][:1])
        for first, rows in [(1, COLUMNS["x"]), (-1, COLUMNS["x"][:1]), (0, COLUMNS["x"][:, :2]), (0, np.ones((1, 3)))]:
            with pytest.raises(ValueError, match="x: "):
                column.put(first, rows)
        column.close()
        column.close()
        finish(made)
    assert contents(tmp_path / "store") == reference(tmp_path)


def test_a_finished_store_is_begun_anew(tmp_path):
    for _ in range(2):
        with StoreWriter(tmp_path / "store", overwrite=True, resume_key="k") as made:
            assert write_missing(made, *COLUMNS) == list(COLUMNS)
            finish(made)
    with pytest.raises(StoreError, match="already exists"), StoreWriter(tmp_path / "store", resume_key="k"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_store_to_be_replaced_stays_while_the_new_one_waits(tmp_path):
    old = formula_store(tmp_path / "store")
    with left_by(KeyboardInterrupt(), tmp_path / "store", overwrite=True) as made:
        write_missing(made, "indptr")
    assert GraphStore.open(tmp_path / "store").fingerprint == old.fingerprint
    with StoreWriter(tmp_path / "store", overwrite=True, resume_key="k") as made:
        assert write_missing(made, *COLUMNS) == ["indices", "x"]
        finish(made)
    assert GraphStore.open(tmp_path / "store").num_nodes == 2
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("key", ["", "a/b", "..", "ä", "a" * 65])
def test_keys_are_parts_of_file_names(tmp_path, key):
    with pytest.raises(ValueError, match="file name"):
        StoreWriter(tmp_path / "store", resume_key=key)


def test_a_signal_just_when_a_writer_begins_leaves_nothing(tmp_path, monkeypatch) -> None:
    def interrupted(*_: object) -> int:
        assert len(list(tmp_path.iterdir())) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "take_lock", interrupted)
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "graph"):
        pass
    assert list(tmp_path.iterdir()) == []
