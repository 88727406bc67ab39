"""TensorBoard events, where TensorBoard is installed (extra ``tensorboard``)."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

_SKIP = {"event", "epoch", "step"}


class EventWriter:
    """Writes the numbers of every event as scalars; does nothing where TensorBoard is not installed.

    The file is written here, not by TensorBoard, whose import takes half a second of every run: records of protocol
    buffers, each with its length and checksums (``TFRecord``), as
    ``tensorflow/core/util/event.proto`` and ``tensorflow/core/lib/io/record_writer.h`` define them.

    Args:
        path: directory of the event files.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO | None = None
        if find_spec("tensorboard") is not None:
            path.mkdir(parents=True, exist_ok=True)
            now = time.time()
            name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
            self._file = (path / name).open("xb")
            self._append(_double(1, now) + _bytes(3, b"brain.Event:2"))

    def write(self, event: Mapping[str, Any], step: int) -> None:
        """Write one event; scalars are named ``<event>/<field>``.

        Args:
            event: as in ``metrics.jsonl``.
            step: steps done over the whole run.
        """
        if self._file is None:
            return
        for name, value in event.items():
            if name not in _SKIP and isinstance(value, (int, float)):
                scalar = _bytes(1, f"{event['event']}/{name}".encode()) + _float(2, value)
                self._append(_double(1, time.time()) + _integer(2, step) + _bytes(5, _bytes(1, scalar)))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _append(self, record: bytes) -> None:
        """Add a record, which readers then see."""
        assert self._file is not None
        length = struct.pack("<Q", len(record))
        self._file.write(length + _checksum(length) + record + _checksum(record))
        self._file.flush()


# Fields of protocol buffers: the number of the field and its kind, then the value.


def _varint(value: int) -> bytes:
    """Seven bits per byte, the low ones first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _integer(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _float(field: int, value: float) -> bytes:
    try:
        return bytes([field << 3 | 5]) + struct.pack("<f", value)
    except OverflowError:  # beyond float32
        return _float(field, float("inf") if value > 0 else float("-inf"))


@cache
def _remainders() -> list[int]:
    """Of all bytes by the polynomial of CRC-32C, reversed (RFC 3720, appendix B.4)."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted so that data that holds checksums can have one."""
    table, value = _remainders(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 255] ^ value >> 8
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)
