"""The files of a checkpoint: tensors and text with a digest of each, so that damage is noticed before it is used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import torch
import xxhash
from safetensors.torch import load, save
from torch import Tensor, nn

from partita.core.errors import RunError
from partita.core.files import read_object, sync_file

DIGESTS = "digests.json"
"""For every other file of the checkpoint: its digest, or those of its tensors by name. Older ones have none."""

_FIX = "Delete its folder to use an earlier checkpoint"


def write_files(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    texts: Mapping[str, str],
    written: Mapping[str, tuple[Path, Mapping[str, str]]] = {},
) -> None:
    """Write all files of a checkpoint into a folder that is empty.

    Args:
        folder: the checkpoint, under the name that it has until it is complete.
        tensors: by file, tensors by name, contiguous, in host memory.
        texts: by file.
        written: files that are complete already, by the names that they get: where they are, and digests of their
            tensors.

    Raises:
        OSError: a file cannot be written.
    """
    digests: dict[str, str | dict[str, str]] = {}
    for name, each in tensors.items():
        digests[name] = {key: tensor_digest(value) for key, value in each.items()}
        (folder / name).write_bytes(save(dict(each)))
    for name, text in texts.items():
        digests[name] = xxhash.xxh3_128_hexdigest(text.encode())
        (folder / name).write_text(text, encoding="utf-8")
    for name, (path, of_tensors) in written.items():
        digests[name] = dict(of_tensors)
        os.replace(path, folder / name)
    (folder / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")
    for name in (*tensors, *texts, *written, DIGESTS):
        sync_file(folder / name)


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a file.

    Raises:
        RunError: it cannot be read, or a tensor is not the one that was written; the message names it.
    """
    path = folder / name
    try:
        found = load(path.read_bytes())
    except Exception as error:  # safetensors raises its own type, which is not public
        raise damaged(path, error) from None
    expected = digests_of(folder, name)
    if expected is None:
        return found
    if not isinstance(expected, dict) or found.keys() != expected.keys():
        raise damaged(path, f"its tensors are not those that {DIGESTS} names")
    for key, tensor in found.items():
        if tensor_digest(tensor) != expected[key]:
            raise damaged(path, f"tensor '{key}' does not match its digest")
    return found


def read_text(folder: Path, name: str) -> str:
    """The text of a file.

    Raises:
        RunError: it cannot be read, or is not what was written.
    """
    path = folder / name
    try:
        text = path.read_bytes()
        expected = digests_of(folder, name)
        if expected is not None and xxhash.xxh3_128_hexdigest(text) != expected:
            raise damaged(path, "it does not match its digest")
        return text.decode("utf-8")
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def require_forms(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str, where: Path) -> None:
    """See that tensors have the names, shapes and dtypes of others: kernels write into them without looking.

    Args:
        tensors: that were read.
        expected: by the same names; their values do not matter.
        what: of whom they are, for the message.
        where: the file.

    Raises:
        RunError: a name is missing or not expected, or a shape or dtype differs.
    """
    for name in sorted(tensors.keys() ^ expected.keys()):
        raise damaged(where, f"{what} {'has no' if name in tensors else 'needs a'} tensor '{name}'")
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (expected[name].shape, expected[name].dtype):
            raise damaged(where, f"tensor '{name}' is {_form(tensor)}, {what} has {_form(expected[name])}")


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Copies of a model and its optimizer after one step, to see what the optimizer remembers of each parameter."""
    twin, its_optimizer = deepcopy((model, optimizer))
    for parameter in twin.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    its_optimizer.step()
    return twin, its_optimizer


def check_slots(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: Path) -> None:
    """See that what an optimizer is to remember has the form that it expects.

    Args:
        tensors: named ``parameter/slot``. A parameter that no step has reached has none.
        expected: those of all parameters, after a step; see :func:`stepped`.
        where: the file.

    Raises:
        RunError: a parameter is unknown, a slot is missing or not expected, or of another shape or dtype.
    """
    known = {name.rpartition("/")[0] for name in expected}
    reached = {name.rpartition("/")[0] for name in tensors}
    for name in sorted(reached - known):
        raise damaged(where, f"unknown parameter '{name}'")
    slots = {name: tensor for name, tensor in expected.items() if name.rpartition("/")[0] in reached}
    require_forms(tensors, slots, "the optimizer", where)


def tensor_digest(tensor: Tensor) -> str:
    """Of dtype, shape and content: xxh3, 128 bits, in hexadecimal."""
    digest = xxhash.xxh3_128(_form(tensor).encode())
    if tensor.numel():
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def damaged(path: Path, reason: object) -> RunError:
    """The error of a file of a checkpoint that cannot be used."""
    return RunError(f"is damaged: {reason}", where=str(path), fix=_FIX)


def digests_of(folder: Path, name: str) -> str | dict[str, str] | None:
    """The digests of a file; ``None`` in older checkpoints."""
    path = folder / DIGESTS
    if not path.exists():
        return None
    found: str | dict[str, str] | None = read_object(path, RunError, _FIX).get(name)
    if found is None:
        raise damaged(path, f"it does not name {name}")
    return found


def _form(tensor: Tensor) -> str:
    return form(tensor.dtype, tuple(tensor.shape))


def form(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Dtype and shape as text: what a digest begins with."""
    return f"{str(dtype).removeprefix('torch.')} {shape}"
