"""Named tensors from the first worker to all, and from all to the first one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from safetensors.torch import load, save
from torch import Tensor

from partita.comm.group import Group


def share_tensors(group: Group, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give all workers of a group the tensors of the first one; counted as metadata.

    Args:
        group: all its workers call this.
        tensors: by name; those of the other workers are ignored.

    Returns:
        The first worker's tensors, on the CPU where they were received.
    """
    if group.size == 1:
        return dict(tensors)
    listed = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}
    listed = group.broadcast(listed)
    shared = {}
    for name, (dtype, shape) in listed.items():
        leads = group.rank == 0
        flat = tensors[name].detach().reshape(-1) if leads else torch.empty(0, dtype=getattr(torch, dtype))
        send, receive = [len(flat)] * group.size, [math.prod(shape), *[0] * (group.size - 1)]
        received = group.exchange(flat.repeat(group.size), send, receive, "metadata")
        shared[name] = tensors[name] if leads else received.view(shape)
    return shared


def gather_tensors(group: Group, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the first worker of a group the tensors of all; counted as metadata.

    Args:
        group: all its workers call this.
        tensors: by name; a name that several workers have stands for the last one's.

    Returns:
        The tensors of all, on the CPU; nothing on the other workers.
    """
    if group.size == 1:
        return dict(tensors)
    packed = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    payload = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    send = [len(payload), *[0] * (group.size - 1)]
    receive = group.exchange_counts(torch.tensor(send)).tolist()
    found: dict[str, Tensor] = {}
    for part in group.exchange(payload, send, receive, "metadata").split(receive):
        if len(part):
            found |= load(part.numpy().tobytes())
    return found
