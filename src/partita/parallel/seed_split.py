"""Which seeds of the global batch each worker starts from. The batch is the same set of seeds either way."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from partita.comm.axis import owners_of_parts
from partita.core.mesh import Mesh
from partita.parallel.strategies import Strategy

SeedSplit = Literal["owner", "even"]
"""How seeds are dealt out.

``owner``: a seed goes to the worker that owns it; shares differ in size and may be empty. ``even``: the batch, whose
order is keyed-random, is cut into equal pieces.
"""


def share_of(
    seeds: Int[Tensor, "B ..."], mesh: Mesh, seed_split: SeedSplit, part_offsets: Int64[Tensor, "P_1"]
) -> Int[Tensor, "b ..."]:
    """This worker's seeds, in the order of the batch. Every seed is in exactly one worker's share.

    Where the store has one part per worker of a host, the batch is cut into equal pieces for the hosts first, and
    each host deals its piece by owner.

    Args:
        seeds: of the global batch, as every worker draws them: nodes, or rows of nodes, which are dealt by their first.
        mesh: who this worker is.
        seed_split: how.
        part_offsets: int64 (P+1) of the store.

    Raises:
        ConfigError: by owner, with another number of parts than workers.
    """
    if seed_split == "even":
        return _piece(seeds, mesh.rank, mesh.size)
    num_parts = part_offsets.shape[0] - 1
    within_host = num_parts == mesh.workers < mesh.size
    if within_host:
        seeds = _piece(seeds, mesh.host, mesh.hosts)
    owner = owners_of_parts(num_parts, "workers" if within_host else "all", mesh.hosts, mesh.workers)
    nodes = seeds if seeds.ndim == 1 else seeds[:, 0].contiguous()
    part = torch.searchsorted(part_offsets[1:].to(seeds.device), nodes.long(), right=True)
    return seeds[owner.to(seeds.device)[part] == (mesh.worker if within_host else mesh.rank)]


def seed_split_of(wanted: SeedSplit | Literal["auto"], strategy: Strategy, num_parts: int, mesh: Mesh) -> SeedSplit:
    """How seeds are dealt out: as is wanted, or with ``auto`` by owner where every worker owns one part."""
    if wanted != "auto":
        return wanted
    owned = num_parts == mesh.size or (strategy.axis == "workers" and num_parts == mesh.workers)
    return "owner" if mesh.size > 1 and owned else "even"


def _piece(seeds: Tensor, position: int, pieces: int) -> Tensor:
    count = seeds.shape[0]
    return seeds[count * position // pieces : count * (position + 1) // pieces]
