"""A device without hardware: its tensors hold their data on the CPU, but behave as those of a CUDA device would.

A tensor of the simulated device says ``is_cuda``, so it meets the Triton kernels (in the interpreter) and the code that
is for devices only. Its ``device`` is ``meta``, which no other test uses. What would fail on a real device fails here:

- an operation on a tensor of the device and a CPU tensor (other than a single number, an index, or a copy);
- ``numpy()``, and whatever else wants the memory of the tensor;
- a kernel that is given CPU memory, unless it was pinned by :func:`pin`;
- arithmetic with unsigned integers of more than 8 bits, and indexing them: they can be copied and looked at otherwise.

What is made without ``device=`` is made on the CPU and so found by the first of these rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from gpu_imports import replace_launch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("meta")
MAY_MIX = ("copy_", "_to_copy")
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
ON_UNSIGNED = (
    "_to_copy", "alias", "as_strided", "cat", "clone", "copy_", "detach", "empty_like", "expand", "select", "slice",
    "split_with_sizes", "t", "unsqueeze", "view", "_unsafe_view", "_reshape_alias",
)  # fmt: skip
INDEXING = ("index", "index_put", "index_put_", "_unsafe_index")

_pinned: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()

watcher: Any = None
"""Told of all that is done on the device; see :mod:`simulated_streams`."""


class DeviceTensor(Tensor):
    """A tensor of the simulated device; ``held`` has its data."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE,
        )  # fmt: skip
        made.held = held
        return made

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_meta = property(lambda self: False)  # type: ignore[assignment]

    def tolist(self) -> Any:
        if watcher is not None:
            watcher.read("tolist", self)
        return self.held.tolist()

    def record_stream(self, stream: Any) -> None:
        stream.told_of(self)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a device tensor to numpy; copy it to host memory first")

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def held(value: Any) -> Any:
    """The data of a tensor of the device; anything else as it is."""
    return value.held if isinstance(value, DeviceTensor) else value


def pin(tensor: Tensor) -> Tensor:
    """A copy that kernels of the device may read in place."""
    copy = tensor.clone()
    _pinned[copy.data_ptr()] = copy
    return copy


def is_pinned(tensor: Tensor) -> bool:
    """Whether kernels of the device may read a CPU tensor."""
    return tensor.numel() == 0 or tensor.data_ptr() in _pinned


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    if any(tensor.is_meta and not isinstance(tensor, DeviceTensor) for tensor in tensors):
        raise RuntimeError(f"{func}: a meta tensor without data; was it made outside of simulated()?")
    if name == "to":  # so it comes in inference mode, elsewhere as the copy that it is
        given = [*args[1:], *kwargs.values()]
        where = next((value for value in given if isinstance(value, torch.device)), args[0].device)
        dtype = next((value for value in given if isinstance(value, torch.dtype)), args[0].dtype)
        if (where.type, dtype) == (args[0].device.type, args[0].dtype):
            return args[0]
        return _run(torch.ops.aten._to_copy.default, args[:1], {"device": where, "dtype": dtype})
    target = kwargs.get("device")
    on_device = bool(ours) if target is None else torch.device(target).type == DEVICE.type
    strangers = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor) and tensor.dim() > 0]
    if name in INDEXING and isinstance(args[0], DeviceTensor):
        strangers = [tensor for tensor in strangers if any(tensor is value for value in args[2:])]  # not the index
    if ours and strangers and name not in MAY_MIX:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found the device and the CPU")
    if not on_device and not ours:
        return func(*args, **kwargs)
    if any(tensor.dtype in UNSIGNED for tensor in ours) and name not in ON_UNSIGNED:
        raise NotImplementedError(f"{func}: not implemented on the device for unsigned integers")
    inner = tree_map(held, kwargs)
    if target is not None:
        inner["device"] = torch.device("cpu")
    inner.pop("pin_memory", None)
    found = func(*tree_map(held, args), **inner)
    to_host = name == "copy_" and not isinstance(args[0], DeviceTensor)
    if not on_device or name == "_local_scalar_dense" or to_host:
        if watcher is not None and ours:
            watcher.read(name, ours[0])
        return args[0] if to_host else found
    found = tree_map(lambda value: DeviceTensor(value) if isinstance(value, Tensor) else value, found)
    if watcher is not None:
        made = [value for value in tree_iter(found) if isinstance(value, Tensor)]
        watcher.ran(name, ours, _written(func, args, kwargs), made, there=not ours and bool(strangers))
    return return_and_correct_aliasing(func, args, kwargs, found)


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors of the device that an operation changes."""
    named = [*zip(func._schema.arguments, args), *((a, kwargs.get(a.name)) for a in func._schema.arguments)]
    changed = [value for argument, value in named if argument.alias_info is not None and argument.alias_info.is_write]
    return [value for value in tree_iter(changed) if isinstance(value, DeviceTensor)]


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchFunctionMode):
    """``torch.tensor`` leaves its data away on the device whose name is borrowed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and target is not None and torch.device(target) == DEVICE:
            return func(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        return func(*args, **kwargs)


@contextmanager
def simulated() -> Iterator[torch.device]:
    """The device, inside the block and on this thread."""
    with ExitStack() as stack:
        stack.enter_context(_Operations())
        stack.enter_context(_Factories())
        yield DEVICE


def launch_on_the_device(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter's kernels take tensors of the device, and pinned ones, but no others."""
    from partita.kernels.gpu.launch import launch

    def unwrapped(kernel: Any, grid: Any, like: Tensor, *args: Any, **constants: Any) -> None:
        for place, value in enumerate(args):
            if isinstance(value, Tensor) and not isinstance(value, DeviceTensor) and not is_pinned(value):
                raise RuntimeError(f"{kernel.fn.__name__}, argument {place}: CPU memory that is not pinned")
        if watcher is not None:
            watcher.launched(kernel.fn.__name__, [value for value in args if isinstance(value, DeviceTensor)])
        launch(kernel, grid, held(like), *(held(value) for value in args), **constants)

    replace_launch(patch, unwrapped)
