"""What is written to a terminal: names of users are no markup there, and no commands to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from partita.core.errors import printable


class SafeConsole(Console):
    """A console that shows control characters of texts as ``\\x1b``; its own colors and cursor stay."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something, with printable text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)
