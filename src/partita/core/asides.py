"""Files and directories that are written under a hidden name, and what killed processes have left of such.

Whoever makes one holds a lock of the system on it for as long as it is in use. The lock ends with the process, however
that ends, so what nobody holds is left behind, on whichever host or in whichever container it was made; the next one
who writes there removes it. On file systems without locks nothing is removed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # no locks on this system: nothing is known to be left behind
    fcntl = None  # type: ignore[assignment]

_NAME = re.compile(r"(\..+\.(partial|unpacked|arrays)|partita-(workers|predict))-\d+-[0-9a-f]{8}")
"""Names that are given here: whose it is, the process, and what makes the name its own."""


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A file to write in place of another one, which it replaces when the block ends without an error.

    What killed processes have left of the same file is removed.

    Args:
        path: of the file.

    Yields:
        The name to write under; it is there, and empty.

    Raises:
        OSError: of the block or of the system; it names ``path``.
    """
    prefix = f".{path.name}.partial-"
    try:
        _remove(path.parent, prefix)
        with _held(path.parent, prefix, lambda aside: aside.touch(exist_ok=False)) as aside:
            try:
                yield aside
                os.replace(aside, path)
            finally:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
    except OSError as error:
        if error.errno is not None and (error.filename is None or prefix in str(error.filename)):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def folder_written_aside(path: Path) -> Iterator[Path]:
    """A directory to write in place of another one, which it replaces when the block ends without an error.

    What killed processes have left of the same directory is removed. There is a moment without any directory at
    ``path``: a kill then leaves the one that was written aside.

    Args:
        path: of the directory; its parent is there.

    Yields:
        The directory to write into; it is empty.

    Raises:
        OSError: it cannot be made, or replace the other one.
    """
    prefix = f".{path.name}.partial-"
    _remove(path.parent, prefix)
    with _held(path.parent, prefix, lambda aside: aside.mkdir()) as aside:
        try:
            yield aside
            shutil.rmtree(path, ignore_errors=True)
            os.replace(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def private_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A directory that only its owner can enter, removed with all that is in it when the block ends.

    What killed processes have left of the same prefix is removed.

    Args:
        prefix: of its name, with a hyphen at the end.
        parent: where it is made; ``None``: the directory for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    _remove(parent, prefix)
    with _held(parent, prefix, lambda folder: folder.mkdir(mode=0o700)) as folder:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Rename what is damaged to a name that nothing looks for, ``damaged-...``; returns the new path."""
    aside, number = path.with_name(f"damaged-{path.name}"), 2
    while os.path.lexists(aside):
        aside, number = path.with_name(f"damaged-{number}-{path.name}"), number + 1
    os.rename(path, aside)
    return aside


def left_behind(parent: Path, prefix: str = "") -> list[Path]:
    """Files and directories in ``parent`` that a killed process has written aside, in order of their names."""
    found = []
    for path in _made_here(parent, prefix):
        with _taken(path) as free:
            if free:
                found.append(path)
    return found


def remove_left_behind(path: Path) -> bool:
    """Remove one of :func:`left_behind`; ``False``: somebody holds it by now, or the system refuses."""
    with _taken(path) as free:  # held while it goes, so that nobody begins to use it meanwhile
        if not free:
            return False
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return not path.exists()


def _remove(parent: Path, prefix: str) -> None:
    for path in _made_here(parent, prefix):
        remove_left_behind(path)


def _made_here(parent: Path, prefix: str) -> list[Path]:
    try:
        names = sorted(name for name in os.listdir(parent) if name.startswith(prefix))
    except OSError:
        return []
    return [parent / name for name in names if _NAME.fullmatch(name)]


@contextmanager
def _held(parent: Path, prefix: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """Make a file or directory of a name of its own, and hold it."""
    held: int | None = None
    path: Path | None = None
    try:
        while True:
            path = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"  # known before it is there
            make(path)
            if fcntl is None:
                break
            with suppress(FileNotFoundError):  # taken for left behind before it was held
                held = os.open(path, os.O_RDONLY)
                with suppress(OSError):  # a file system without locks, where nothing is ever taken for left behind
                    fcntl.flock(held, fcntl.LOCK_EX)
                if os.path.samestat(os.stat(path), os.fstat(held)):
                    break
            if held is not None:
                os.close(held)
                held = None
    except BaseException:  # also a signal that came just when it had been made
        if path is not None:
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if held is not None:
            os.close(held)
        raise
    try:
        yield path
    finally:
        if held is not None:
            os.close(held)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Whether it is this user's and no process held it before; it is held in the block."""
    if fcntl is None:
        yield False
        return
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.fstat(file).st_uid == os.geteuid()
        except OSError:
            free = False
        yield free
    finally:
        os.close(file)
