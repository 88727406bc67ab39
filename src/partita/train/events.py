"""TensorBoard events, where TensorBoard is installed (extra ``tensorboard``)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SKIP = {"event", "epoch", "step"}


class EventWriter:
    """Writes the numbers of every event as scalars; does nothing where TensorBoard is not installed.

    Args:
        path: directory of the event files.
    """

    def __init__(self, path: Path) -> None:
        self._writer: Any = None
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(path))

    def write(self, event: Mapping[str, Any], step: int) -> None:
        """Write one event; scalars are named ``<event>/<field>``.

        Args:
            event: as in ``metrics.jsonl``.
            step: steps done over the whole run.
        """
        if self._writer is None:
            return
        for name, value in event.items():
            if name not in _SKIP and isinstance(value, (int, float)):
                self._writer.add_scalar(f"{event['event']}/{name}", value, step)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
