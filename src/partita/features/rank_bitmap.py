"""Which nodes are in a set, and their ranks within it: a bitmap with running counts."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt64
from torch import Tensor

_WORD = 64
_BYTES_PER_WORD = 8 + 4


class Positions:
    """A set of nodes that answers, in constant time, whether a node is in it and how many members have a lower id.

    12 bytes for every 64 nodes of the graph, whatever the size of the set: a twentieth of a 4-byte slot per node, and
    quicker to look up than that, because more of it stays in the processor's caches. (A search in the sorted members
    is smaller for sets below a twentieth of the nodes, and ten times slower.) The same structure is used for *rank*
    queries on bit vectors; Jacobson, "Space-efficient static trees and graphs", FOCS 1989.

    Args:
        ids: the members, in any order.
        num_nodes: N.
    """

    def __init__(self, ids: Int[Tensor, "m"], num_nodes: int) -> None:
        member = np.zeros(-(-num_nodes // _WORD) * _WORD, dtype=np.bool_)
        member[ids.cpu().numpy()] = True
        self._words = np.packbits(member, bitorder="little").view("<u8").astype(np.uint64, copy=False)
        counts = _ones(self._words).astype(np.int64)
        self._before = (np.cumsum(counts) - counts).astype(np.uint32)
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @staticmethod
    def bytes_for(num_nodes: int) -> int:
        """Bytes of a set of nodes of a graph with so many."""
        return -(-num_nodes // _WORD) * _BYTES_PER_WORD

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self._words.nbytes + self._before.nbytes

    def contains(self, ids: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each node is a member."""
        if ids.device.type != "cpu":
            return self.find(ids) >= 0
        words, bits = self._look_up(ids)
        return torch.from_numpy((words & bits) != 0)

    def find(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Rank of each node among the members in ascending order of their ids; -1 for a node that is none."""
        if ids.device.type != "cpu":
            return self._find_on_device(ids)
        words, bits = self._look_up(ids)
        rank = self._before[ids.numpy() >> 6].astype(np.int64) + _ones(words & (bits - np.uint64(1)))
        return torch.from_numpy(np.where(words & bits, rank, -1))

    def _find_on_device(self, ids: Int[Tensor, "n"]) -> Int64[Tensor, "n"]:
        if ids.device not in self._copies:
            words, before = torch.from_numpy(self._words.view(np.int64)), torch.from_numpy(self._before.view(np.int32))
            # Where threads come at once the first copy stays: another may still read it, on a stream of its own.
            self._copies.setdefault(ids.device, (words.to(ids.device), before.to(ids.device)))
        words, before = self._copies[ids.device]
        at = ids.long()
        word, bit = words[at >> 6], torch.ones_like(at) << (at & 63)
        rank = (before[at >> 6].long() & 0xFFFFFFFF) + _signed_ones(word & (bit - 1))
        return torch.where((word & bit) != 0, rank, -1)

    def _look_up(self, ids: Int[Tensor, "n"]) -> tuple[UInt64[np.ndarray, "n"], UInt64[np.ndarray, "n"]]:
        at = ids.numpy()
        return self._words[at >> 6], np.uint64(1) << (at & 63).astype(np.uint64)


def _ones(words: UInt64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """Number of 1 bits of each word."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.bitwise_count(words).astype(np.int64)
    octets = words.view(np.uint8).reshape(-1, 8)
    return _ONES_OF_OCTET[octets].sum(axis=1)


def _signed_ones(words: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Number of 1 bits of each word by shifts and sums: torch counts no bits, and knows no unsigned shift.

    A signed shift fills up with the sign only where the mask is 0.
    """
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return (words * 0x0101010101010101) >> 56


_ONES_OF_OCTET = np.array([value.bit_count() for value in range(256)], dtype=np.int64)
