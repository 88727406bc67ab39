"""The best new neighbors by brute force: blocks, ranges of workers, ties and what is left out change nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from link_queries import WIDTH, as_known, cases

from partita.core.errors import ConfigError
from partita.core.node_types import NodeTypes
from partita.infer.known_answers import LinkQueries
from partita.infer.top_links import NOBODY, TopLinks, top_links
from partita.nn.decoders import build_decoder


def brute_top(decoder, queries, rows, types, known, original, k, itself):
    kinds, found = types.of(np.arange(len(rows))), []
    for i in range(len(queries)):
        scored = []
        for node in range(len(rows)):
            left_out = node == queries.true[i] or (i, node) in known or (not itself and node == queries.given[i])
            if kinds[node] != queries.types[i] or left_out:
                continue
            ends = rows[queries.given[i]][None], rows[node][None]
            relation = torch.tensor([queries.relations[i]])
            score = float(decoder(*(ends if queries.side == "tail" else ends[::-1]), relation))
            scored.append((-score, int(original[node]), node))
        best = [node for _, _, node in sorted(scored)[:k]]
        found.append(best + [NOBODY] * (k - len(best)))
    return found


@settings(max_examples=120)
@given(cases(), st.integers(1, 7), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_the_best_by_brute_force(case, k, reordered, itself, random) -> None:
    """Of one range, and of several whose lists are merged in any order. Small integers make sums exact, and ties."""
    types, rows, queries, known, cuts, limit = case
    decoder = build_decoder("dot", WIDTH, 3)
    original = torch.randperm(len(rows)) if reordered else None
    wanted = brute_top(
        decoder, queries, rows, types, known, range(len(rows)) if original is None else original, k, itself
    )
    lists = [
        top_links(
            decoder, queries, rows[queries.given], rows[low:high], low, types, k,
            original=original, known=as_known(known, len(queries), len(rows)), itself=itself, memory_limit=limit,
        )
        for low, high in pairwise(cuts)
    ]  # fmt: skip
    random.shuffle(lists)
    best = TopLinks.merged(lists, k)
    assert best.ids.tolist() == wanted
    for i, ids in enumerate(wanted):
        chosen = [node for node in ids if node != NOBODY]
        assert best.scores[i, : len(chosen)].tolist() == [float(rows[queries.given[i]] @ rows[n]) for n in chosen]
        assert bool((best.scores[i, len(chosen) :] == -torch.inf).all())


def test_many_candidates_and_few_wanted() -> None:
    """More than are sorted: the k-th score is that of many, of which the first by original index are taken."""
    rows = torch.cat([torch.zeros(500, 1), torch.ones(3, 1), torch.zeros(500, 1)])
    original = torch.arange(1003).flip(0)
    none = np.zeros(1, np.int64)
    queries = LinkQueries("tail", none + 501, none, none - 1, none)
    best = top_links(
        build_decoder("dot", 1), queries, rows[501:502], rows, 0, NodeTypes(np.array([0, 1003])), 5, original=original
    )
    assert best.original.tolist() == [[500, 502, 0, 1, 2]]


def test_what_has_no_best_is_refused() -> None:
    none = np.zeros(1, np.int64)
    queries, types = LinkQueries("tail", none, none, none - 1, none), NodeTypes(np.array([0, 2]))
    decoder, rows = build_decoder("dot", 1), torch.tensor([[1.0], [torch.nan]])
    with pytest.raises(ConfigError, match="not a number"):
        top_links(decoder, queries, rows[:1], rows, 0, types, 1)
    with pytest.raises(ConfigError, match="at least 1"):
        top_links(decoder, queries, rows[:1], rows, 0, types, 0)
