"""What takes the time of a stage: Partita's stages once more, under PyTorch's profiler."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

SHOWN = 25
Found = dict[str, Any]
NOTE = (
    "Own time: while a function was the innermost one of its thread; so it is of the thread that called, whatever "
    "other threads a function computes on, and waiting counts. Threads run at once, so that own times may add up to "
    "more than has passed, and there is Python between functions, so that they may add up to less. Names that begin "
    "with `partita::` are Partita's. The whole run of a stage, with every "
    "call in order, is in the trace beside this file: open it in <https://ui.perfetto.dev>."
)


class Profile:
    """One stage under the profiler. A stage says by :meth:`steady` what of it is no longer warming up.

    Args:
        trace: file to write, for ``chrome://tracing`` or Perfetto.
    """

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self._profile: profile | None = None
        self._seconds = 0.0

    @contextmanager
    def steady(self) -> Iterator[None]:
        """The block to profile, in all threads."""
        everywhere = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as found:
            begun = time.perf_counter()
            yield
            self._seconds = time.perf_counter() - begun
        self._profile = found

    def found(self) -> Found:
        """``seconds`` that the block took; ``functions``, by own time: name, own seconds, calls; and of every thread,
        ``busy``: the seconds that it was in functions at all."""
        if self._profile is None:
            raise RuntimeError("the stage has no steady part")
        self._profile.export_chrome_trace(str(self._trace))
        busy: dict[int, float] = {}
        for event in self._profile.events() or ():
            if event.cpu_parent is None:
                busy[event.thread] = busy.get(event.thread, 0.0) + event.time_range.elapsed_us() / 1e6
        own = [(each.key, each.self_cpu_time_total / 1e6, each.count) for each in self._profile.key_averages()]
        functions = sorted(own, key=lambda one: -one[1])
        return {"seconds": self._seconds, "functions": functions, "busy": sorted(busy.values(), reverse=True)}


def stem(configuration: str, stage: str) -> str:
    """The name of a profile's files, without what a shell or a web address would stumble over."""
    return re.sub(r"[^\w.]+", "-", f"{configuration}-{stage}")


def section(what: str, found: Found, trace: str, *, steps: int | None, usual_seconds: float | None) -> str:
    """One profile as Markdown.

    Args:
        what: was profiled.
        found: see :meth:`Profile.found`.
        trace: name of the trace's file.
        steps: that it made; ``None`` where it is made of none.
        usual_seconds: without the profiler, where that is comparable.
    """
    seconds, functions = found["seconds"], found["functions"]
    total = sum(own for _, own, _ in functions) or 1.0
    told = f"{seconds:.3g} s"
    if steps:
        told += f" for {steps} steps, {_number(1000 * seconds / steps)} ms each"
    if usual_seconds:
        told += f"; {usual_seconds:.3g} s without the profiler"
    shares = ", ".join(f"{each / seconds:.0%}" for each in found["busy"])
    lines = [
        f"## {what}",
        "",
        f"{told}. Share of it that each thread was in functions: {shares}. Trace: `{trace}`.",
        "",
    ]
    per = steps or 1
    unit = " a step" if steps else ""
    lines += [_row("function", f"own ms{unit}", "share", f"calls{unit}", "own µs a call"), "|---|--:|--:|--:|--:|"]
    named, rest = [(f"`{name}`", own, calls) for name, own, calls in functions[:SHOWN]], functions[SHOWN:]
    if rest:
        named.append((f"{len(rest)} more", sum(own for _, own, _ in rest), sum(calls for *_, calls in rest)))
    for name, own, calls in named:
        figures = (_number(1000 * own / per), f"{own / total:.1%}", _number(calls / per), _number(1e6 * own / calls))
        lines.append(_row(name.replace("|", "\\|"), *figures))
    return "\n".join([*lines, ""])


def page(title: str, sections: Sequence[str]) -> str:
    """All profiles of a stage of a configuration."""
    return "\n".join([f"# {title}", "", NOTE, "", *sections])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
