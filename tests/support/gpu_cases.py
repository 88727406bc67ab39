"""What GPU kernels must give: what the reference does. Each case takes a device; "cpu" is Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import product
from random import Random

import numpy as np
import pytest
import torch

from partita import kernels
from partita.core.keys import below, fold
from partita.kernels import Relabeller
from partita.kernels.reference.draws import arrival_time

KEY = 0xFEDCBA9876543210
EPS = 1e-2  # rows of one column are all 0 but for rounding, which the inverse deviation, 1/sqrt(EPS), makes larger
SAMPLES: list = []
ROWS: list = []
DRAWS: list = []
HOST_COLUMNS: list = []  # cases whose columns lie in pinned host memory: for devices only

INTS = (torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)
ROUNDING = {torch.bfloat16: 1e-2, torch.float32: 2e-5, torch.float64: 1e-12}


def case(group: list, **choices: tuple) -> Callable:
    """Enter a case into a group, once for every combination of the choices."""

    def enter(check: Callable) -> Callable:
        for values in product(*choices.values()):
            name = "-".join([check.__name__, *(str(value).removeprefix("torch.") for value in values)])
            group.append(pytest.param(partial(check, **dict(zip(choices, values))), id=name))
        return check

    return enter


def to(value: object, device: str) -> object:
    """The same with its tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(to(one, device) for one in value)
    if is_dataclass(value):
        return type(value)(**{f.name: to(getattr(value, f.name), device) for f in fields(value)})
    return value


def kernels_of(device: str) -> AbstractContextManager:
    """Tensors on a device find its kernels by themselves."""
    return kernels.use("gpu") if device == "cpu" else nullcontext()


def flat(value: object) -> Iterator[object]:
    """The tensors and numbers of a result."""
    if isinstance(value, tuple):
        for one in value:
            yield from flat(one)
    elif is_dataclass(value):
        for f in fields(value):
            yield from flat(getattr(value, f.name))
    else:
        yield value


def same(device: str, work: Callable, *inputs: object, rounding: bool = False) -> None:
    """``work`` gives on the device what it gives with the reference: the same bits, or the same up to rounding."""
    with kernels.use("reference"):
        wanted = work(*inputs)
    moved = [to(one, device) for one in inputs]
    with kernels_of(device):
        found = work(*moved)
    for a, b in zip(flat(found), flat(wanted), strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.device.type == torch.device(device).type
        tolerance = ROUNDING[b.dtype] if rounding else 0.0
        torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance, equal_nan=True)


def random_rows(seed: int, rows: int, longest: int) -> torch.Tensor:
    """``indptr`` of rows, some of them empty."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, longest + 1, rows) * (random.random(rows) < 0.8)
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def random_store(seed: int, nodes: int, longest: int, dtype: torch.dtype) -> tuple:
    """``indptr``, ``indices``, ``weights`` with multi-edges and self loops, zero degrees, zero and huge weights."""
    random = np.random.default_rng(seed)
    indptr = random_rows(seed, nodes, longest)
    edges = int(indptr[-1])
    weights = random.integers(0, 2**32, edges, dtype=np.uint32)
    weights[random.random(edges) < 0.3] = 0
    weights[random.random(edges) < 0.2] = 1
    indices = torch.from_numpy(random.integers(0, max(nodes, 1), edges)).to(dtype)
    return indptr, indices, torch.from_numpy(weights)


def sampled(device: str, seed: int, fanout: int, replace: bool, weighted: bool, dtype: torch.dtype, **more) -> None:
    """One comparison of samples of a random store."""
    longest, nodes = more.pop("longest", 30), more.pop("nodes", 25)
    indptr, indices, weights = random_store(seed, nodes, longest, dtype)
    dst = torch.from_numpy(np.random.default_rng(seed).permutation(nodes)[: nodes * 2 // 3]).to(dtype)
    weights = weights if weighted else None

    def work(indptr, indices, dst, original, weights):
        return kernels.sample_neighbors(
            indptr, indices, dst, original, KEY + seed, fanout, replace=replace, weights=weights, positions=True
        )

    same(device, work, indptr, indices, dst, dst.long() * 1_000_003 + 7, weights)


@case(SAMPLES, fanout=(-1, 0, 1, 3, 10, 33), replace=(False, True), weighted=(False, True), dtype=INTS)
def sample(device, fanout, replace, weighted, dtype):
    sampled(device, fanout + 2 * replace + weighted + 1, fanout, replace, weighted, dtype)


@case(SAMPLES, fanout=(127, 128, 129, 140), replace=(False, True), weighted=(False, True))
def sample_many_of_long_rows(device, fanout, replace, weighted):
    sampled(device, fanout, fanout, replace, weighted, torch.int32, nodes=5, longest=300)


@case(SAMPLES, fanout=(-1, 2, 200), weighted=(False, True))
def sample_nothing(device, fanout, weighted):
    sampled(device, 1, fanout, False, weighted, torch.int64, nodes=0)
    sampled(device, 1, fanout, False, weighted, torch.int64, longest=0)


@case(SAMPLES, weighted=(False, True))
def sample_from_a_range_of_rows(device, weighted):
    indptr, indices, weights = random_store(7, 20, 12, torch.int32)
    begin, end, dst = int(indptr[5]), int(indptr[15]), torch.arange(5, 15)

    def work(indptr, indices, weights, dst):
        return kernels.sample_neighbors(
            indptr, indices, dst, dst, KEY, 4, weights=weights, first_edge=begin, positions=True
        )

    same(device, work, indptr, indices[begin:end], weights[begin:end] if weighted else None, dst)
    if device == "cpu":
        with kernels_of(device), pytest.raises(IndexError, match="dst: edges"):
            work(indptr, indices[begin:end], None, dst + 1)


@case(SAMPLES, replace=(False, True), weighted=(False, True), kinds=(torch.uint8, torch.uint16))
def sample_by_relation(device, replace, weighted, kinds):
    indptr, indices, weights = random_store(9, 25, 40, torch.int32)
    kind = random_kinds(9, indptr, 4).to(kinds)
    dst = torch.randperm(25, generator=torch.Generator().manual_seed(2))[:15]

    def work(indptr, indices, kind, dst, weights):
        return kernels.sample_relations(
            indptr, indices, kind, dst, dst * 7 + 3, KEY, (3, 0, -1, 5), replace=replace, weights=weights,
            positions=True,
        )  # fmt: skip

    same(device, work, indptr, indices, kind, dst, weights if weighted else None)


@case(SAMPLES, fanout=(-1, 3, 129), replace=(False, True), weighted=(False, True))
def sample_without_some_edges(device, fanout, replace, weighted):
    indptr, indices, weights = random_store(13, 12, 200, torch.int32)
    kind = random_kinds(13, indptr, 3).to(torch.uint8)
    begin, end, dst = int(indptr[2]), int(indptr[11]), torch.arange(2, 11).flip(0)
    edges = torch.arange(begin, end)
    lost = edges[torch.from_numpy(np.random.default_rng(3).random(len(edges)) < 0.3)]

    def work(indptr, indices, kind, dst, weights, lost):
        given = {"replace": replace, "weights": weights, "positions": True, "first_edge": begin, "excluded": lost}
        return (
            kernels.sample_neighbors(indptr, indices, dst, dst * 7, KEY, fanout, **given),
            kernels.sample_relations(indptr, indices, kind, dst, dst * 7, KEY, (fanout, 0, 5), **given),
        )

    weights = weights[begin:end] if weighted else None
    same(device, work, indptr, indices[begin:end], kind[begin:end], dst, weights, lost)


@case(SAMPLES, typed=(False, True), kinds=(torch.uint8, torch.uint16))
def find_edges(device, typed, kinds):
    indptr, indices, _ = random_store(15, 12, 60, torch.int32)
    kind = random_kinds(15, indptr, 3).to(kinds)
    dst, src = torch.tensor([3, 7, 3, 11, 3, 7]), torch.tensor([1, 2, 1, 5, 9, 7])
    wanted = torch.tensor([0, 2, 1, 1, 2, 0]) if typed else None

    def work(indptr, indices, kind, dst, src, wanted):
        return kernels.find_edges(indptr, indices, kind, dst, src, wanted)

    same(device, work, indptr, indices, kind, dst, src, wanted)


def random_kinds(seed: int, indptr: torch.Tensor, relations: int) -> torch.Tensor:
    """A relation for each edge, ascending in every row; int64."""
    kinds = np.random.default_rng(seed).integers(0, relations, int(indptr[-1]))
    row = torch.repeat_interleave(indptr.diff()).numpy()
    return torch.from_numpy(kinds[np.lexsort((kinds, row))])


@case(SAMPLES)
def weighted_sampling_in_parts(device):
    from partita.kernels.gpu import sampling

    before, sampling.EDGES_AT_ONCE = sampling.EDGES_AT_ONCE, 40
    try:
        for replace in (False, True):
            for fanout in (-1, 3):
                sampled(device, 5, fanout, replace, True, torch.int32)
    finally:
        sampling.EDGES_AT_ONCE = before


@case(SAMPLES, dtype=INTS)
def relabeling(device, dtype):
    random = np.random.default_rng(3)
    for num_dst, edges in ((0, 0), (0, 9), (9, 0), (10, 60)):
        dst = torch.from_numpy(random.permutation(40)[:num_dst]).to(dtype)
        ids = torch.from_numpy(random.integers(0, 40, edges)).to(dtype)
        same(device, lambda dst, ids: kernels.relabel(dst, ids, Relabeller(40)), dst, ids)
        again = partial(kernels.relabel, relabeller=Relabeller(40))
        for _ in range(2):
            same(device, again, dst, ids)
    with kernels_of(device):
        twice = to(torch.tensor([2, 1, 2], dtype=dtype), device)
        with pytest.raises(ValueError, match="twice"):
            kernels.relabel(twice, twice, Relabeller(40))
        if device == "cpu":
            with pytest.raises(IndexError, match="it holds the id 2, but there are 2 nodes"):
                kernels.relabel(twice[:0], twice, Relabeller(2))


@case(SAMPLES, relabeled=(False, True), loops=(False, True), dtype=FLOATS)
def gcn(device, relabeled, loops, dtype):
    indptr, indices, _ = random_store(11, 20, 9, torch.int32)
    rows = torch.repeat_interleave(indptr.diff())
    count = torch.bincount(rows[indices == rows], minlength=20).int() if loops else None
    indices = indices if loops else torch.where(indices == rows, (indices + 1) % 20, indices)
    dst = torch.randperm(20)[:11].int()
    with kernels.use("reference"):
        found = kernels.sample_neighbors(indptr, indices, dst, dst, KEY, 4)
        src, local = kernels.relabel(dst, found.indices, Relabeller(20)) if relabeled else (None, found.indices)

    def work(store, count, *block):
        return kernels.gcn_coefficients(store, count, *block, dtype)

    same(device, work, indptr, count, dst, src, found.indptr, local, rounding=True)


@case(SAMPLES, dtype=INTS)
def counting(device, dtype):
    for ids in ([], [3], [5, 5, 0, 199, 64, 63, 5]):
        same(device, lambda ids: kernels.count_distinct(ids, 200), torch.tensor(ids, dtype=dtype))


@case(ROWS)
def gather_halves(device):
    for rows, columns, num in ((9, 5, 21), (7, 300, 2), (4, 0, 3), (4, 8, 0)):
        x, ids = torch.randn(rows, columns).half(), torch.randint(0, rows, (num,))
        same(device, lambda x, ids: kernels.gather_rows(x, ids, dtype=torch.float16), x, ids)


@case(ROWS, x_dtype=(torch.float16, torch.float64), dtype=FLOATS, scaled=(False, True))
def gather(device, x_dtype, dtype, scaled):
    for rows, columns, num in ((9, 5, 21), (3, 1, 4), (7, 300, 2), (4, 0, 3), (4, 8, 0)):
        x, scale = torch.randn(rows, columns).to(x_dtype), torch.rand(rows) if scaled else None
        ids = torch.randint(0, rows, (num,))

        def work(x, ids, scale):
            out = torch.empty(ids.shape[0], x.shape[1], dtype=dtype, device=ids.device)
            assert kernels.gather_rows(x, ids.int(), scale=scale, dtype=dtype, out=out) is out
            return out, kernels.gather_rows(x, ids, scale=scale, dtype=dtype)

        same(device, work, x, ids, scale)
    if device == "cpu":
        with kernels_of(device), pytest.raises(IndexError, match="ids: 9 to 9, but there are 9 rows"):
            kernels.gather_rows(torch.ones(9, 2), torch.tensor([9]))


@case(ROWS, x_dtype=(torch.int8, torch.uint8), dtype=FLOATS, scaled=(False, True))
def expand(device, x_dtype, dtype, scaled):
    for rows, columns, first, last, num in ((9, 5, 0, 5, 21), (3, 1, 0, 1, 4), (7, 300, 3, 298, 2), (4, 6, 2, 2, 3)):
        x = torch.randint(-128, 128, (rows, columns), dtype=torch.int8).view(x_dtype)
        scale, step, offset = torch.rand(rows) if scaled else None, torch.rand(last - first), torch.randn(last - first)
        ids = torch.randint(0, rows, (num,))

        def work(x, ids, step, offset, scale, first=first):
            copied = kernels.gather_rows(x, ids, dtype=x.dtype)
            found = kernels.expand_rows(x, ids.int(), step, offset, first=first, scale=scale, dtype=dtype)
            return copied.view(torch.int8), found

        same(device, work, x, ids, step, offset, scale)


def random_block(seed: int, dtype: torch.dtype = torch.int32) -> tuple:
    """``indptr``, ``indices``, S."""
    indptr = random_rows(seed, 13, 9)
    return indptr, torch.from_numpy(np.random.default_rng(seed).integers(0, 8, int(indptr[-1]))).to(dtype), 8


@case(ROWS, x_dtype=(torch.float16, *FLOATS), reduce=("sum", "mean"), heads=(None, 1, 3), scaled=(False, True))
def aggregate(device, x_dtype, reduce, heads, scaled, columns=6):
    """The same bits: the sums have the same order, and products are rounded before they are added."""
    for dtype, ids in zip(FLOATS, INTS):
        indptr, indices, src = random_block(1, ids)
        x, scale = torch.randn(src, columns).to(x_dtype), torch.rand(src) if scaled else None
        weight = None if heads is None else torch.randn(indices.shape[0], heads)

        def work(x, indptr, indices, weight, scale, dtype=dtype):
            return kernels.aggregate(x, indptr, indices, weight, reduce=reduce, scale=scale, dtype=dtype)

        # On the CPU, a factor of another dtype goes into the weights, in another order.
        same(device, work, x, indptr, indices, weight, scale, rounding=scaled and dtype == torch.float64)


@case(ROWS, columns=(100, 261), heads=(None, 1))
def aggregate_wide(device, columns, heads):
    aggregate(device, torch.float16, "mean", heads, True, columns)


@case(ROWS, dtype=FLOATS)
def aggregate_little(device, dtype):
    for rows, src, columns in ((0, 3, 4), (3, 3, 0), (3, 1, 1), (40, 2, 2)):
        indptr = torch.arange(rows + 1) * (src > 1)
        indices = torch.zeros(int(indptr[-1]), dtype=torch.int32)
        x = torch.randn(src, columns, dtype=dtype)
        same(device, lambda x, *edges: kernels.aggregate(x, *edges, reduce="mean"), x, indptr, indices)


@case(ROWS)
def aggregate_bfloat16(device):
    indptr, indices, src = random_block(2)
    x = torch.randn(src, 5).bfloat16()
    same(device, kernels.aggregate, x, indptr, indices)


@case(ROWS, dtype=FLOATS, reduce=("sum", "mean"), heads=(None, 1, 2))
def gradients(device, dtype, reduce, heads):
    indptr, indices, src = random_block(3, torch.int64)
    grad = torch.randn(13, 10, dtype=dtype)
    weight = None if heads is None else torch.randn(indices.shape[0], heads)

    def backward(grad, indptr, indices, weight):
        transposed = kernels.transpose(indptr, indices, src)
        return transposed, kernels.aggregate_backward(grad, transposed, indptr, src, weight, reduce=reduce)

    same(device, backward, grad, indptr, indices, weight)
    if heads is not None:
        for width in (heads, 270):
            wide = torch.randn(13, width, dtype=dtype), torch.randn(src, width, dtype=dtype)

            def weights(grad, x, indptr, indices):
                return kernels.aggregate_weight_grad(grad, x, indptr, indices, heads, reduce=reduce)

            same(device, weights, *wide, indptr, indices, rounding=True)


@case(ROWS, dtype=FLOATS, ids=INTS)
def maxima(device, dtype, ids):
    indptr, indices, src = random_block(4, ids)
    for columns in (1, 6, 130):
        x = torch.randint(-3, 3, (src, columns)).to(dtype)  # many ties
        x[::3, 0], x[::5, 0] = -torch.inf, torch.nan
        grad = torch.randn(13, columns, dtype=dtype)

        def work(x, grad, indptr, indices):
            values, argmax = kernels.segment_max(x, indptr, indices)
            return values, argmax, kernels.segment_max_backward(grad, argmax, indices, src)

        same(device, work, x, grad, indptr, indices)
        same(device, work, x, grad[:0], indptr[:1], indices[:0])
        same(device, work, x, grad[:2], torch.zeros(3, dtype=torch.int64), indices[:0])


@case(ROWS, ids=INTS)
def transposing(device, ids):
    for seed in range(3):
        indptr, indices, _ = random_block(seed, ids)
        same(device, lambda *edges: kernels.transpose(*edges, 10), indptr, indices)
    same(device, lambda *edges: kernels.transpose(*edges, 0), torch.zeros(4, dtype=torch.int64), indices[:0])


@case(DRAWS)
def arithmetic(device):
    """Draws and weights of every size, the smallest and the largest among them."""
    from gpu_probe import arithmetic

    from partita.kernels.gpu.launch import launch, signed
    from partita.kernels.gpu.sampling import _log_table

    random = Random(0)
    draws = [0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 2**64 - 2**45]
    draws += [random.getrandbits(bits) for bits in range(1, 65)] + [random.getrandbits(64) for _ in range(56)]
    sizes = [0, 1, 2**62, *(random.getrandbits(random.randint(1, 62)) for _ in range(125))]
    weights = [2**32 - 1, 1, *(random.randint(1, 2 ** random.randint(1, 32) - 1) for _ in range(126))]
    inputs = [torch.tensor(row).to(device) for row in ([signed(draw) for draw in draws], sizes, sizes, weights)]
    outputs = [torch.empty_like(inputs[0]) for _ in range(4)]
    table = _log_table(inputs[0].device)
    launch(arithmetic, (1,), table, *inputs, table, *outputs, BLOCK=128)
    folded, mapped, zeros, times = (one.tolist() for one in outputs)
    assert folded == [signed(fold(draw, size)) for draw, size in zip(draws, sizes)]
    assert mapped == [below(draw, size) for draw, size in zip(draws, sizes)]
    assert zeros == [64 - (draw | 1).bit_length() for draw in draws]
    assert times == [arrival_time(draw, weight) for draw, weight in zip(draws, weights)]


@case(DRAWS, p=(0.0, 0.3, 1.0), dtype=FLOATS)
def dropout(device, p, dtype):
    for rows, columns in ((5, 7), (3, 1), (2, 700), (0, 4), (4, 0)):
        x, original = torch.randn(rows, columns, dtype=dtype), torch.randperm(10**6)[:rows]

        def work(x, original):
            fresh, own = kernels.dropout(x, original, KEY, p), x.clone()
            assert kernels.dropout(own, original, KEY, p, out=own) is own
            return fresh, own, kernels.dropout(x, original, KEY, p, relu=True)

        same(device, work, x, original)


@case(DRAWS, p=(0.0, 0.3), dtype=(*FLOATS, torch.bfloat16))
def norm_relu_dropout(device, p, dtype):
    for rows, columns in ((5, 7), (3, 1), (2, 300), (0, 4)):
        x, grad = torch.randn(rows, columns).to(dtype), torch.randn(rows, columns).to(dtype)
        original = torch.randperm(10**6)[:rows]
        weight, bias = torch.rand(columns) + 0.5, torch.randn(columns)

        def work(x, grad, weight, bias, original):
            out, moments = kernels.norm_relu_dropout(x, weight, bias, EPS, original, KEY, p)
            return out, moments, *kernels.norm_relu_dropout_backward(grad, out, x, weight, moments, p)

        same(device, work, x, grad, weight, bias, original, rounding=True)


@case(DRAWS, p=(0.0, 0.3, 1.0), dtype=FLOATS)
def edge_dropout(device, p, dtype):
    for seed, heads in ((1, 1), (2, 4), (3, 5), (4, 8)):
        indptr = random_rows(seed, 12, 40)
        original = torch.randperm(10**6)[:12]
        same(device, lambda *rows: kernels.edge_dropout(*rows, KEY, p, heads, dtype), indptr, original)  # noqa: B023
    same(device, lambda *rows: kernels.edge_dropout(*rows, KEY, p, 2, dtype), indptr[:1], original[:0])


@case(DRAWS, n=(1, 2, 3, 5, 8, 300, 2**31 - 1, 2**40 + 3, 2**62))
def permutation(device, n):
    start = max(n - 290, 0)
    for key in (0, 5, KEY):
        with kernels.use("reference"):
            wanted = kernels.keyed_permutation(start, n, n, key)
        with kernels_of(device):
            assert torch.equal(kernels.keyed_permutation(start, n, n, key, device=device).cpu(), wanted)
            assert kernels.keyed_permutation(n, n, n, key, device=device).shape == (0,)


@case(HOST_COLUMNS, weighted=(False, True), replace=(False, True))
def sample_from_host_memory(device, weighted, replace):
    """The store stays where it is; what is asked for, and what comes back, is on the device."""
    indptr, indices, weights = random_store(21, 40, 30, torch.int32)
    dst = torch.randperm(40)[:20].int()
    for fanout in (-1, 5):

        def work(dst, store, fanout=fanout):
            return kernels.sample_neighbors(
                store[0], store[1], dst, dst, KEY, fanout,
                replace=replace, weights=store[2] if weighted else None, positions=True,
            )  # fmt: skip

        with kernels.use("reference"):
            wanted = work(dst, (indptr, indices, weights))
        found = work(dst.to(device), [one.pin_memory() for one in (indptr, indices, weights)])
        for a, b in zip(flat(found), flat(wanted), strict=True):
            assert not isinstance(b, torch.Tensor) or torch.equal(a.cpu(), b)


@case(HOST_COLUMNS, dtype=(torch.float16, torch.float32))
def rows_from_host_memory(device, dtype):
    indptr, indices, src = random_block(5)
    x, scale = torch.randn(src, 20).to(dtype), torch.rand(src)

    def work(x, scale, indptr, indices):
        return kernels.gather_rows(x, indices, scale=scale), kernels.aggregate(x, indptr, indices, scale=scale)

    with kernels.use("reference"):
        wanted = work(x, scale, indptr, indices)
    found = work(x.pin_memory(), scale.pin_memory(), indptr.to(device), indices.to(device))
    for a, b in zip(found, wanted):
        assert torch.equal(a.cpu(), b)
