"""Where the edges of links are; the rule is that of :func:`partita.kernels.locate_edges`."""

from __future__ import annotations

from collections import defaultdict

import torch
from jaxtyping import Int, Int64, Shaped
from torch import Tensor

from partita.kernels import checks


def locate_edges(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    edge_type: Shaped[Tensor, "M"] | None,
    links: Int64[Tensor, "S columns"],
    relations: Int64[Tensor, "R"] | None,
    backward: bool,
    codes: Int[Tensor, "S"],
) -> tuple[Int[Tensor, "S"], Int64[Tensor, "C_1"], Int64[Tensor, "P"]]:
    """Fill ``codes``, and list the parallel edges."""
    wanted = []
    for source, target, *kind in links.tolist():
        dst, src = (source, target) if backward else (target, source)
        meant = 0 if edge_type is None or relations is None else int(relations[kind[0] if kind else 0])
        wanted.append((dst, meant, src))
    found, rows = defaultdict[tuple[int, int, int], list[int]](list), indptr.tolist()
    for dst in {each[0] for each in wanted}:
        for position in range(rows[dst], rows[dst + 1]):
            kind = 0 if edge_type is None else int(edge_type[position])
            found[dst, kind, int(indices[position])].append(position)
    several = sorted(each for each in set(wanted) if len(found[each]) > 1)
    number = {each: group for group, each in enumerate(several)}
    of_link = [-2 - number[each] if each in number else (*found[each], -1)[0] for each in wanted]
    codes.copy_(torch.tensor(of_link, dtype=torch.int64))
    sizes = torch.tensor([0, *(len(found[each]) for each in several)])
    return codes, sizes.cumsum(0), torch.tensor([p for each in several for p in found[each]], dtype=torch.int64)


def gather_positions(
    codes: Int[Tensor, "S sides"],
    offsets: Int64[Tensor, "C_1"],
    positions: Int64[Tensor, "P"],
    links: Int64[Tensor, "n"],
) -> Int64[Tensor, "k"]:
    """Positions of all edges of some links, ascending, each once."""
    checks.within("links", links, codes.shape[0])
    chosen = codes[links].flatten().long()
    several = [positions[offsets[-2 - code] : offsets[-1 - code]] for code in chosen[chosen < -1].tolist()]
    return torch.cat([chosen[chosen >= 0], *several]).unique()
