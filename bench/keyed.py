"""What keyed sampling costs: ``python bench/keyed.py [--scale 19] [--edges 23]`` prints a table.

Partita's samples are pure functions: every draw is a hash of a key, the node and the place of the draw. Others hold
the state of a generator. So that the difference is of the draws alone, both run the same kernel: the twin is compiled
from the very code of the keyed one, with a generator in place of the hash, and so changes whenever the kernel does.
Where the kernel draws in another way than by :func:`~partita.kernels.cpu.draws.fold` of a key, numba refuses the twin,
and this file has to follow.

The two take turns in one process; every figure is the median of the repetitions, and so is the ratio, of neighbors.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import numpy as np
import torch
from kernels import Sampler, rmat
from llvmlite import ir
from numba import njit, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic, overload

from partita import kernels
from partita.kernels.cpu import draws, sampling
from partita.kernels.relabeller import Relabeller

STEPS = 16
TARGET = 1.25
U = np.uint64


class State(threading.local):
    """The state of a generator, in memory, one for every thread: so do libraries hold theirs.

    Attributes:
        address: of its two words.
    """

    def __init__(self) -> None:
        self._words = np.random.default_rng().integers(1, 2**64, 2, np.uint64)
        self.address = int(self._words.ctypes.data)


@intrinsic
def word(typing_context, address, place):
    """The uint64 at a place of an array."""

    def generate(context, builder, signature, args):
        return builder.load(_pointer(builder, args))

    return types.uint64(types.int64, types.int64), generate


@intrinsic
def set_word(typing_context, address, place, value):
    """Write the uint64 at a place of an array."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _pointer(builder, args))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint64), generate


def _pointer(builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    return builder.gep(builder.inttoptr(args[0], ir.IntType(64).as_pointer()), [args[1]])


def from_state(key: Any, value: Any) -> Any:
    """What stands in for :func:`partita.kernels.cpu.draws.fold`, by the type of the key.

    The key of a call, a tuple of a state's address, becomes the key of a node: the address itself. The key of a node
    gives the next draw: xoroshiro128+ (Blackman and Vigna, 2018), one of the fastest good generators. Not through an
    array: numba counts the references to it and looks for negative places, which took a third of the kernel's time.
    """
    raise NotImplementedError("compiled code only")


@overload(from_state, inline="always")
def _from_state(key, value):  # numba wants the same annotations here and in what it returns
    if isinstance(key, types.BaseTuple):
        return lambda key, value: key[0]
    if key != types.int64:
        return None
    s24, s16, s37, s40, s27 = U(24), U(16), U(37), U(40), U(27)

    def draw(key, value):
        low, high = word(key, 0), word(key, 1)
        mixed = low ^ high
        set_word(key, 0, ((low << s24) | (low >> s40)) ^ mixed ^ (mixed << s16))
        set_word(key, 1, (mixed << s37) | (mixed >> s27))
        return low + high

    return draw


def stateful(kernel: Dispatcher) -> Dispatcher:
    """The twin of a compiled kernel: the same code, with :func:`from_state` wherever it, or what it calls, folds."""
    plain = kernel.py_func
    names = dict(plain.__globals__)
    for name in plain.__code__.co_names:
        if names.get(name) is draws.fold:
            names[name] = from_state
        elif isinstance(names.get(name), Dispatcher) and folds(names[name]):
            names[name] = stateful(names[name])
    options = {option: kernel.targetoptions[option] for option in ("nogil", "inline") if option in kernel.targetoptions}
    return njit(**options)(FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__))


def folds(kernel: Dispatcher) -> bool:
    """Whether a kernel, or what it calls, draws by folding keys."""
    found = [kernel.py_func.__globals__.get(name) for name in kernel.py_func.__code__.co_names]
    return draws.fold in found or any(folds(each) for each in found if isinstance(each, Dispatcher))


@contextmanager
def with_states(twin: Dispatcher) -> Iterator[None]:
    """A block in which uniform picks are the twin's."""
    state = State()

    def pick(indices: np.ndarray, original: np.ndarray, key: np.uint64, *rest: Any) -> None:
        twin(indices, original, (state.address,), *rest)

    with mock.patch.object(sampling, "pick_uniform", pick):
        yield


def one_thread(sampler: Sampler) -> Callable[[int], int]:
    """Samples so many batches after each other; edges drawn."""
    relabeller = Relabeller(sampler.num_nodes)

    def work(first: int) -> int:
        with kernels.limited(1):
            return sum(sampler.batch(step, relabeller) for step in range(first, first + STEPS))

    return work


def side_by_side(sampler: Sampler, pool: ThreadPoolExecutor) -> Callable[[int], int]:
    """The same in two threads, a batch in each, as the trainer does it."""
    scratch = [Relabeller(sampler.num_nodes) for _ in range(2)]

    def work(first: int) -> int:
        def half(thread: int) -> int:
            with kernels.limited(1):
                steps = range(first + thread, first + STEPS, 2)
                return sum(sampler.batch(step, scratch[thread]) for step in steps)

        return sum(pool.map(half, range(2)))

    return work


def rate(work: Callable[[int], int], first: int) -> float:
    """Edges a second."""
    begun = time.perf_counter()
    edges = work(first)
    return edges / (time.perf_counter() - begun)


def compare(name: str, work: Callable[[int], int], twin: Dispatcher, repetitions: int) -> None:
    """Both in turns, and a line of the table."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for repetition in range(-1, repetitions):  # the first is not counted
        for keyed in (True, False) if repetition % 2 else (False, True):
            first = 1000 * (repetition + 1)
            if keyed:
                found = rate(work, first)
            else:
                with with_states(twin):
                    found = rate(work, first)
            if repetition >= 0:
                rates[keyed].append(found)
    keyed, state = statistics.median(rates[True]), statistics.median(rates[False])
    ratio = statistics.median(b / a for a, b in zip(rates[True], rates[False]))
    verdict = "within" if ratio <= TARGET else "OVER"
    print(f"| {name} | {keyed / 1e6:.1f} | {state / 1e6:.1f} | {ratio:.2f} ({verdict} {TARGET}) |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=19, help="log2 of the number of nodes")
    parser.add_argument("--edges", type=int, default=23, help="log2 of the number of edges before both directions")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    indptr, indices = both_ways(*rmat(options.scale, options.edges))
    print(
        f"R-MAT, {indptr.shape[0] - 1:,} nodes, {indices.shape[0]:,} edges; M edges/s, median of {options.repetitions} "
        f"times {STEPS} batches.\n"
    )
    print("| | keyed | with a state | time of keyed to with a state |\n|---|--:|--:|--:|")
    twin = stateful(sampling.pick_uniform)
    with ThreadPoolExecutor(2) as pool:
        for fuse, (name, of) in itertools.product(
            (False, True),
            (("one thread a call", one_thread), ("2 batches side by side", lambda s: side_by_side(s, pool))),
        ):
            what = "layer 1 not relabeled" if fuse else "sample and relabel"
            compare(f"{what}, {name}", of(Sampler(indptr, indices, fuse)), twin, options.repetitions)


def both_ways(indptr: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every edge also the other way."""
    row = torch.repeat_interleave(torch.arange(indptr.shape[0] - 1, dtype=torch.int32), indptr.diff())
    both, order = torch.cat([row, indices]).sort(stable=True)
    counts = torch.bincount(both, minlength=indptr.shape[0] - 1)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), torch.cat([indices, row])[order]


if __name__ == "__main__":
    main()
