"""What every kernel means, in plain Python, numpy and torch: the oracle of the tests and the fallback without numba.

Everything random is integer arithmetic modulo 2^64, so that every implementation draws the same bits.

**Draws.** ``fold(key, value) = mix64(key + GOLDEN * (value + 1))`` as in :mod:`partita.core.keys`. A destination with
original index v has the node key ``fold(key, v)``; its draw number s is ``h_s = fold(fold(key, v), s)``.
``below(h, n) = floor(h * n / 2^64)`` maps a draw to 0..n-1 (the high word of a 64 x 64 bit product; the bias is below
n / 2^64). *Slot* j of a node is the j-th in-edge of its row, counted from 0.

**Uniform with replacement**, fanout k, degree d > 0: pick s is slot ``below(h_s, d)``, for s = 0..k-1.

**Uniform without replacement**: all slots in row order if d <= k. Otherwise Floyd's algorithm (Bentley and Floyd,
"A sample of brilliance", CACM 1987): for s = 0..k-1 let b = d - k + s and t = ``below(h_s, b + 1)``; pick slot t, or
slot b where t was picked before. Every set of k slots is equally likely; work and memory do not depend on d.

**Weighted without replacement**: only slots of positive weight take part; all of them in row order if they are at
most k. Otherwise every slot j arrives at a time of its own (Efraimidis and Spirakis, "Weighted random sampling with a
reservoir", IPL 2006), ``-log2(u_j) / w_j`` with u_j = h_j / 2^64; the k first to arrive are picked, of equal times the
smaller slot, and they are listed in slot order. This is drawing one by one without replacement, each time in proportion
to the weights that are left. In integers:

- ``z`` = number of leading zero bits of h | 1, ``m = (h | 1) << z``, ``d = 2^64 - 1 - m`` (below 2^63),
  ``i = d >> 51``, ``r = (d >> 19) mod 2^32``, and ``T[i] = ceil(-log2(1 - i / 8192) * 2^42)`` for i = 0..4096;
- ``L = (z << 42) + T[i] + (((T[i+1] - T[i]) * r) >> 32)``, which is -log2(u) in units of 2^-42 with a relative error
  below 2^-13;
- ``c`` = leading zero bits of L, ``q = floor((L << c) / w)``, ``e`` = leading zero bits of q; the time is the 64-bit
  integer ``((128 - c - e) << 55) + (((q << e) >> 8) mod 2^55)``, or 0 if L is 0: exponent and mantissa of
  the quotient, so that any weight from 1 to 2^32 - 1 keeps at least 31 significant bits.

**Weighted with replacement**, total weight W > 0: pick s is the smallest slot j whose running total
w_0 + ... + w_j exceeds ``below(h_s, W)``.

**Fanout -1** takes all slots in row order (with weights: all slots of positive weight) without drawing.

**A layer as a whole**, budget n for all destinations of all workers together: slots arrive at times of their own.

- With weights, every slot j of every destination v runs a clock. Its draw number a is ``h_a = fold(fold(fold(key, v),
  j), a)``, L_a is the L above of h_a, and it arrives for the a-th time at the time of the sum ``L_0 + ... + L_a`` over
  w, encoded as above with that sum in place of L. A slot of weight 0 never arrives.
- Without weights, a destination of d slots runs one clock for all of them, at d times the rate, so that nothing is
  spent on slots that do not arrive. With ``h_a = fold(fold(key, v), a)`` its arrival a is one of slot ``below(fold(h_a,
  1), d)``, at the time of the sum of ``L_0 >> 6`` to ``L_a >> 6`` over d, encoded as above, plus ``6 << 55``, which is
  the exponent for the six bits that keep long sums from overflowing. (A Poisson process of rate d whose points are
  dealt out at random is d independent ones of rate 1.)

Without replacement only the first arrival of each slot counts, with replacement all do. Let tau be the (n+1)-th
smallest *distinct* time of an arrival (infinite where there are no more than n; written ``2^63 - 1``): all arrivals
before tau are picked, per destination in slot order, a slot as often as it arrives. A node that several workers ask for
has the same times everywhere, so its arrivals count once, whoever asks. So n edges are drawn: with replacement
independently, each in proportion to the weights over the union of the destinations, which is a multinomial sample of
it; without, one by one in proportion to the weights that are left.

The *importance* of a picked edge makes sums over the picks have those over all edges as their expectation. With t =
tau decoded, ``t = ln 2 * 2^-42 * (the quotient that tau encodes)``, it is ``1 / (1 - exp(-w t))`` without replacement
(the rank conditioning of Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007: the others' n-th
time is tau, and the edge is picked if it arrives before; w = 1 without weights), ``1 / (w t)`` with replacement (n
arrivals of rate W before tau, and 1 / tau has the expectation W / n), and 1 where tau is infinite.

**Dropout**: column c of the row of node v is kept iff the 16-bit lane ``(fold(fold(key, v), c // 4) >> 16 * (c mod 4))
mod 2^16`` is at least ``floor(p * 65536 + 1/2)``. For edges, head a of the j-th edge of v's row in the block uses the
lane a mod 4 of ``fold(fold(fold(key, v), j), a // 4)``.

**Random walks**, R from every start, of L steps, with restart probability p: walk r = 0..R-1 from the start v with
original index o uses, before its step s = 0..L-1, the draw ``h = fold(fold(fold(key, o), r), s)``. It stands at u.
If the 16 low bits of ``fold(h, 1)`` are below ``min(floor(p * 65536 + 1/2), 65535)``, it goes back to v instead of
moving. Else it moves to the in-neighbor at slot ``below(fold(h, 0), d)`` of u, which has degree d; weighted, at the
smallest slot whose running total of weights exceeds ``below(fold(h, 0), W)``, with W the total weight of u. If d (or W)
is 0, it goes back to v; if u is v, it ends there. The *visits* of a node are the times that the R walks from v step on
it; v itself does not count. Nodes are listed by visits, most first; those with equally many in the order in which they
are first visited, walk after walk.

**Permutation** of 0..n-1: with b = max(1, ceil(bits(n-1) / 2)), place i is split into a high and a low half of b bits;
eight Feistel rounds r = 0..7 map (L, R) to (R, L xor (fold(fold(key, r), R) mod 2^b)); while the result is n or more,
all eight rounds are applied to it again (cycle walking, at most 4 times on average).
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int, UInt32, UInt64
from torch import Tensor

from partita.core.keys import GOLDEN, MIX_1, MIX_2, below, fold
from partita.kernels.reference_race import arrival_time as arrival_time
from partita.kernels.reference_race import arrival_times as arrival_times
from partita.kernels.reference_race import log_table as log_table
from partita.kernels.reference_race import pick_arrivals as pick_arrivals
from partita.kernels.reference_walks import random_walks as random_walks
from partita.kernels.reference_walks import top_visits as top_visits
from partita.kernels.reference_walks import walk_draws as walk_draws
from partita.kernels.reference_walks import walk_step as walk_step
from partita.kernels.relabeller import Relabeller

FEISTEL_ROUNDS = 8


def pick_uniform(node_key: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Slots drawn for one destination."""
    if fanout < 0 or (degree <= fanout and not replace) or degree == 0:
        return list(range(degree))
    if replace:
        return [below(fold(node_key, s), degree) for s in range(fanout)]
    picks: dict[int, None] = {}
    for s in range(fanout):
        bound = degree - fanout + s
        slot = below(fold(node_key, s), bound + 1)
        picks[bound if slot in picks else slot] = None
    return list(picks)


def pick_weighted(node_key: int, weights: UInt32[np.ndarray, "d"], fanout: int, replace: bool) -> list[int]:
    """Slots drawn for one destination whose in-edges have ``weights``."""
    slots = np.flatnonzero(weights).tolist()
    if fanout < 0 or (len(slots) <= fanout and not replace) or not slots:
        return slots
    if replace:
        totals = np.cumsum(weights, dtype=np.uint64)
        goals = [below(fold(node_key, s), int(totals[-1])) for s in range(fanout)]
        return np.searchsorted(totals, np.array(goals, np.uint64), side="right").tolist()
    times = ((arrival_time(fold(node_key, j), int(weights[j])), j) for j in slots)
    return sorted(j for _, j in heapq.nsmallest(fanout, times))


def sample_neighbors(
    indptr: Int[Tensor, "N_1"],
    indices: Int[Tensor, "M"],
    dst: Int[Tensor, "D"],
    dst_original: Int[Tensor, "D"],
    key: int,
    fanout: int,
    replace: bool,
    weights: UInt32[Tensor, "M"] | None,
    relabeller: Relabeller | None,
    first_edge: int,
) -> tuple[Int[Tensor, "D_1"], Int[Tensor, "E"], Int[Tensor, "S"] | None, Int[Tensor, "E"]]:
    """``indptr``, ``indices``, ``src`` of the sample, and where among the given edges every sampled one is."""
    rows, weight = indptr.numpy(), None if weights is None else weights.numpy()
    counts: list[int] = [0]
    positions: list[int] = []
    for node, original in zip(dst.tolist(), dst_original.tolist()):
        begin, end = int(rows[node]) - first_edge, int(rows[node + 1]) - first_edge
        if weight is None:
            slots = pick_uniform(fold(key, original), end - begin, fanout, replace)
        else:
            slots = pick_weighted(fold(key, original), weight[begin:end], fanout, replace)
        positions.extend(begin + slot for slot in slots)
        counts.append(len(positions))
    at = torch.tensor(positions, dtype=torch.int64)
    ids = indices[at]
    if relabeller is None:
        return torch.tensor(counts), ids, None, at
    src, local = relabel(dst, ids, relabeller)
    return torch.tensor(counts), local, src, at


def relabel(
    dst: Int[Tensor, "D"], ids: Int[Tensor, "E"], relabeller: Relabeller
) -> tuple[Int[Tensor, "S"], Int[Tensor, "E"]]:
    """``src`` and local indices of a sample's store ids; the scratch is not used."""
    local = {node: i for i, node in enumerate(dst.tolist())}
    if len(local) != dst.shape[0]:
        raise ValueError("a node is twice among the destinations")
    numbers = [local.setdefault(node, len(local)) for node in ids.tolist()]
    return torch.tensor(list(local), dtype=ids.dtype), torch.tensor(numbers, dtype=torch.int32)


def gcn_coefficients(
    store_indptr: Int[Tensor, "N_1"],
    self_loops: Int[Tensor, "N"] | None,
    dst: Int[Tensor, "D"],
    src: Int[Tensor, "S"] | None,
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    weight: Float[Tensor, "E"],
    self_weight: Float[Tensor, "D"],
) -> None:
    """Fill ``weight`` and ``self_weight``."""
    dst = dst.long()
    sources = indices.long() if src is None else src.long()[indices.long()]
    degree = (store_indptr[1:] - store_indptr[:-1]).double()
    norm = degree + 1 if self_loops is None else degree + 1 - self_loops
    counts = indptr[1:] - indptr[:-1]
    at = torch.repeat_interleave(counts)
    scaled = (degree[dst] / counts)[at] / (norm[sources] * norm[dst][at]).sqrt()
    weight.copy_(scaled.masked_fill(sources == dst[at], 0.0))
    self_weight.copy_(1 / norm[dst])


def gather_rows(
    x: Float[Tensor, "N F"], ids: Int[Tensor, "n"], scale: Float[Tensor, "N"] | None, out: Float[Tensor, "n F"]
) -> None:
    """Fill ``out``."""
    out.copy_(x[ids.long()])
    if scale is not None:
        out.mul_(scale[ids.long()][:, None])


def aggregate(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    edge: Int[Tensor, "E"] | None,
    weight: Float[Tensor, "E H"] | None,
    scale: Float[Tensor, "S"] | None,
    reduce: str,
    out: Float[Tensor, "D F"],
) -> None:
    """Fill ``out``; where ``edge`` is given, the weight of edge e is ``weight[edge[e]]``.

    Sums are float64 where ``out`` is, and float32 elsewhere.
    """
    counts = indptr[1:] - indptr[:-1]
    rows = x[indices.long()].to(torch.float64 if out.dtype == torch.float64 else torch.float32)
    if scale is not None:
        rows = rows * scale[indices.long()][:, None]
    if weight is not None:
        weight = weight if edge is None else weight[edge]
        heads = weight.shape[1]
        rows = (rows.reshape(-1, heads, rows.shape[1] // heads) * weight[:, :, None]).reshape(rows.shape)
    total = rows.new_zeros(out.shape).index_add_(0, torch.repeat_interleave(counts), rows)
    if reduce == "mean":
        total.div_(counts.clamp(min=1)[:, None])
    out.copy_(total)


def aggregate_weight_grad(
    grad: Float[Tensor, "D F"],
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    reduce: str,
    out: Float[Tensor, "E H"],
) -> None:
    """Fill ``out``."""
    counts = indptr[1:] - indptr[:-1]
    dst = torch.repeat_interleave(counts)
    products = grad[dst] * x[indices.long()]
    out.copy_(products.reshape(*out.shape, x.shape[1] // out.shape[1]).sum(-1))
    if reduce == "mean":
        out.div_(counts[dst][:, None])


def segment_max(
    x: Float[Tensor, "S F"],
    indptr: Int[Tensor, "D_1"],
    indices: Int[Tensor, "E"],
    values: Float[Tensor, "D F"],
    argmax: Int[Tensor, "D F"],
) -> None:
    """Fill ``values`` and ``argmax``."""
    rows, begins = x[indices.long()].numpy(), indptr.tolist()
    values.zero_()
    argmax.fill_(-1)
    for i, (begin, end) in enumerate(pairwise(begins)):
        if end > begin:
            first = rows[begin:end].argmax(0)  # numpy: the first of equals, and NaN is the largest
            values[i] = torch.from_numpy(np.take_along_axis(rows[begin:end], first[None], 0)[0])
            argmax[i] = begin + torch.from_numpy(first)


def segment_max_backward(
    grad: Float[Tensor, "D F"], argmax: Int[Tensor, "D F"], indices: Int[Tensor, "E"], out: Float[Tensor, "S F"]
) -> None:
    """Add to ``out``, which is zero."""
    row, column = torch.nonzero(argmax >= 0, as_tuple=True)
    out.index_put_((indices[argmax[row, column]].long(), column), grad[row, column], accumulate=True)


def transpose(
    indptr: Int[Tensor, "D_1"], indices: Int[Tensor, "E"], num_src: int
) -> tuple[Int[Tensor, "S_1"], Int[Tensor, "E"], Int[Tensor, "E"]]:
    """``indptr``, ``dst`` and ``edge`` of the transposed index."""
    edge = torch.argsort(indices, stable=True)
    begins = torch.zeros(num_src + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(indices, minlength=num_src), 0, out=begins[1:])
    return begins, torch.repeat_interleave(indptr[1:] - indptr[:-1])[edge].int(), edge


def _fold_all(key: UInt64[np.ndarray, "n"], value: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """:func:`partita.core.keys.fold`, elementwise (numpy wraps unsigned arrays without a warning)."""
    z = key + np.uint64(GOLDEN) * (value + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))


def _lanes(key: UInt64[np.ndarray, "n 1"], columns: int) -> Int[np.ndarray, "n columns"]:
    """The 16-bit lane of every column for every row key."""
    column = np.arange(columns, dtype=np.uint64)[None, :]
    draws = _fold_all(key, column // np.uint64(4))
    return ((draws >> (np.uint64(16) * (column % np.uint64(4)))) & np.uint64(0xFFFF)).astype(np.int64)


def dropout(
    x: Float[Tensor, "n F"],
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    relu: bool,
    out: Float[Tensor, "n F"],
) -> None:
    """Fill ``out``, which may be ``x``."""
    row_key = _fold_all(np.full(rows_original.shape, key, np.uint64), rows_original.numpy().astype(np.uint64))
    keep = torch.from_numpy(_lanes(row_key[:, None], x.shape[1]) >= threshold)
    out.copy_(torch.where(keep, (x.relu() if relu else x) * factor, torch.zeros((), dtype=x.dtype)))


def norm_relu_dropout(
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    bias: Float[Tensor, "F"],
    eps: float,
    rows_original: Int[Tensor, "n"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "n F"],
    moments: Float[Tensor, "n 2"],
) -> None:
    """Fill ``out`` and ``moments`` (mean, 1 / sqrt(variance + eps)); all is computed in the dtype of ``moments``."""
    rows = x.to(moments.dtype)
    moments[:, 0] = rows.mean(1)
    moments[:, 1] = (rows.var(1, correction=0) + eps).rsqrt()
    normal = (rows - moments[:, :1]) * moments[:, 1:] * weight + bias
    if threshold:
        dropout(normal, rows_original, key, threshold, factor, True, normal)
    out.copy_(normal.relu())


def norm_relu_dropout_backward(
    grad: Float[Tensor, "n F"],
    out: Float[Tensor, "n F"],
    x: Float[Tensor, "n F"],
    weight: Float[Tensor, "F"],
    moments: Float[Tensor, "n 2"],
    factor: float,
    grad_x: Float[Tensor, "n F"],
) -> tuple[Float[Tensor, "F"], Float[Tensor, "F"]]:
    """Fill ``grad_x``; the gradients of weight and bias."""
    passed = torch.where(out <= 0, 0.0, grad.to(moments.dtype) * factor)
    normal = (x.to(moments.dtype) - moments[:, :1]) * moments[:, 1:]
    weighted = passed * weight
    along = (weighted * normal).mean(1, keepdim=True)
    grad_x.copy_((weighted - weighted.mean(1, keepdim=True) - normal * along) * moments[:, 1:])
    return (passed * normal).sum(0), passed.sum(0)


def edge_dropout(
    indptr: Int[Tensor, "D_1"],
    dst_original: Int[Tensor, "D"],
    key: int,
    threshold: int,
    factor: float,
    out: Float[Tensor, "E H"],
) -> None:
    """Fill ``out``."""
    dst = torch.repeat_interleave(indptr[1:] - indptr[:-1])
    slot = (torch.arange(out.shape[0]) - indptr[dst]).numpy().astype(np.uint64)
    original = dst_original[dst].numpy().astype(np.uint64)
    edge_key = _fold_all(_fold_all(np.full(original.shape, key, np.uint64), original), slot)
    keep = torch.from_numpy(_lanes(edge_key[:, None], out.shape[1]) >= threshold)
    out.copy_(keep.to(out.dtype) * factor)


def count_distinct(ids: Int[Tensor, "n"], scratch: Int[Tensor, "words"]) -> int:
    """Number of distinct ids; the scratch is not used."""
    return torch.unique(ids).shape[0]


def keyed_permutation(start: int, n: int, key: int, out: Int[Tensor, "m"]) -> None:
    """Fill ``out`` with places ``start``, ``start + 1``... of the permutation."""
    bits = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << bits) - 1)
    rounds = [fold(key, r) for r in range(FEISTEL_ROUNDS)]
    value = np.arange(start, start + out.shape[0], dtype=np.uint64)
    walking = np.ones(value.shape, bool)
    while walking.any():
        left, right = value[walking] >> np.uint64(bits), value[walking] & mask
        for round_key in rounds:
            drawn = _fold_all(np.full(right.shape, round_key, np.uint64), right)
            left, right = right, left ^ (drawn & mask)
        value[walking] = (left << np.uint64(bits)) | right
        walking = value >= n
    out.copy_(torch.from_numpy(value.astype(np.int64)))
