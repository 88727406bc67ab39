"""Which implementation of the kernels runs."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from partita.core.profiling import named, profiled

if TYPE_CHECKING:
    from torch import Tensor

_chosen: str | None = None


class use:
    """Choose the implementation for CPU tensors, for the whole process; as a context manager, until the block ends.

    Tensors on a CUDA device always go to ``"gpu"``.

    Args:
        name: ``"cpu"`` (numba), ``"reference"``, or ``"gpu"`` (Triton), which takes CPU tensors in Triton's
            interpreter only: very slow, for tests.

    Raises:
        ValueError: unknown name; ``"gpu"`` where Triton's interpreter is not on.
        ImportError: ``"cpu"`` without numba, ``"gpu"`` without triton.
    """

    def __init__(self, name: Literal["cpu", "reference", "gpu"]) -> None:
        global _chosen
        if name not in ("cpu", "reference", "gpu"):
            raise ValueError(f"kernels {name!r} are none of 'cpu', 'reference', 'gpu'")
        if name != "gpu":
            importlib.import_module(f"partita.kernels.{name}")
        elif not _gpu().INTERPRETED:
            raise ValueError(
                "kernels 'gpu' take CPU tensors in Triton's interpreter only. "
                "Set the environment variable TRITON_INTERPRET=1 before Python starts"
            )
        self._before = _chosen
        _chosen = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _chosen
        _chosen = self._before


def load() -> None:
    """Import the chosen implementation, and what its compiler imports, now instead of at the first kernel call."""
    implementation()
    if _chosen == "cpu":
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()


def will_compile() -> bool:
    """Whether the chosen implementation is compiled when it is first called: nothing is kept on disk yet."""
    if _chosen != "cpu":
        return False
    from partita.kernels.cpu import sampling

    folder = sampling.pick_uniform.stats.cache_path
    return folder is None or not any(Path(folder).glob(f"{sampling.__name__.rpartition('.')[2]}.pick_*.nbi"))


def implementation(asks: Tensor | None = None) -> ModuleType:
    """The module whose kernels a call runs.

    Args:
        asks: the tensor that says what is wanted (destinations, ids, a gradient). If it is on a CUDA device, the
            kernels of that device run, though a column that they read may be in host memory.

    Returns:
        for CPU tensors, the chosen module; at first use the compiled one, or the reference where numba is not
        installed. While PyTorch's profiler is on, a stand-in of the same name, whose kernels the profiler sees.

    Raises:
        ImportError: a tensor on a CUDA device without triton.
    """
    module = _module(asks)
    return _Visible(module) if profiled() else module


def _module(asks: Tensor | None) -> ModuleType:
    global _chosen
    if asks is not None and asks.is_cuda:
        return _gpu()
    if _chosen is None:
        try:
            importlib.import_module("numba")
            _chosen = "cpu"
        except ImportError:
            _chosen = "reference"
    return _imported(f"partita.kernels.{_chosen}")


@cache
def _imported(name: str) -> ModuleType:
    """A module whose import has ended, which is not said of those in ``sys.modules``: other threads may be at it."""
    return importlib.import_module(name)


def _gpu() -> ModuleType:
    try:
        return importlib.import_module("partita.kernels.gpu")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError("the kernels of a CUDA device need triton: pip install triton") from error


class _Visible(ModuleType):
    """A module whose functions PyTorch's profiler shows as ``partita::`` and their names."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self._kernels = module

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)

        def visible(*args: Any) -> Any:
            with named(name):
                return kernel(*args)

        return visible
