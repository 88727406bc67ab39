from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from partita.core.records import Block


def build_block(num_dst: int, num_src: int, counts: list[int], generator: torch.Generator) -> Block:
    indptr = torch.tensor([0, *counts]).cumsum(0)
    indices = torch.randint(max(num_src, 1), (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    ids = torch.randperm(num_src, generator=generator) + 100
    return Block(dst=ids[:num_dst], src=ids, indptr=indptr, indices=indices, dst_original=3 * ids[:num_dst] + 1)


SHAPES: dict[str, tuple[int, int, list[int]]] = {
    "multi-edges and loops": (4, 6, [9, 3, 12, 1]),
    "zero in-degrees": (5, 8, [0, 4, 0, 6, 0]),
    "no edges": (3, 3, [0, 0, 0]),
    "no destinations": (0, 0, []),
    "one of each": (1, 1, [1]),
}


@pytest.fixture(params=list(SHAPES))
def block(request: pytest.FixtureRequest) -> Block:
    return build_block(*SHAPES[request.param], torch.Generator().manual_seed(7))


@pytest.fixture
def make_block() -> Callable[..., Block]:
    return build_block
