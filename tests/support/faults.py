"""What can go wrong around a command: prepared in its own process, or in the folder that it works in."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def small_files(limit: str) -> None:
    """No file may be larger than so many bytes.

    Python would keep the first bytes of what it compiles, and fail wherever that is imported next.
    """
    sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))


def few_files(limit: str) -> None:
    """No more files than this may be open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))


def no_rights(_: str) -> None:
    """Permissions of files hold for this process and all that it starts, also where it is root's."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        set_securebits, no_root = 28, 1  # of prctl(2): what is executed gets no capabilities for being root's
        if libc.prctl(set_securebits, no_root, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if libc.capset(version_3, (ctypes.c_uint32 * 6)()):
            raise OSError(ctypes.get_errno(), "capset")


def gone_directory(path: str) -> None:
    """The working directory is deleted once the command is in it."""
    Path(path).mkdir()
    os.chdir(path)
    os.rmdir(path)


def output_to(path: str) -> None:
    """Standard output goes to a file or device."""
    file = os.open(path, os.O_WRONLY)
    os.dup2(file, 1)
    os.close(file)


def can_mount() -> bool:
    """Whether this process lives in a mount namespace of its own, as under ``make faults``, and may mount there."""
    return os.environ.get("PARTITA_FAULTS_MOUNT") == "1"


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """A disk of its own in a new directory."""
    path.mkdir(mode=0o755)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
        path.rmdir()


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nothing can be written to a disk that :func:`disk` has made."""
    subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(path)], check=True)


@contextmanager
def nearly_full(path: Path, room: int) -> Iterator[None]:
    """A disk has room for so many bytes more."""
    filler = path / "filler"
    try:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(path).free - room))
        yield
    finally:
        filler.unlink(missing_ok=True)
