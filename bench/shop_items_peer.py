"""Next purchases by the plain model of ``shop_peer.py``.

All links of a batch have one time, as with ``share_same_time`` of RelBench's loader of links, so that rows of products
are computed once for it: those that were bought, and random ones. A question's score of a product is the dot product of
their rows, and the loss a softmax over the product that was bought and random ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from shop_data import Columns, Questions
from shop_items import mean_precision
from shop_peer import Graph, Peer, batches, sample
from torch import Tensor
from torch.nn import functional

Links = tuple[np.ndarray, np.ndarray]
"""Questions, and a product that answers each."""


def of_one_time(links: Links, asked: np.ndarray, size: int, random: np.random.Generator) -> Iterator[Links]:
    """Batches in random order, each of random links whose questions are asked at one time."""
    questions, products = links
    found = list[np.ndarray]()
    for each in np.unique(asked[questions]):
        found += batches(random.permutation(np.flatnonzero(asked[questions] == each)), size)
    for number in random.permutation(len(found)):
        yield questions[found[number]], products[found[number]]


def trained_items(
    tables: dict[str, Columns],
    *,
    fanouts: Sequence[int],
    last: bool,
    width: int,
    epochs: int,
    batch_size: int,
    negatives: int,
    lr: float,
    embed_lr: float,
    seed: int,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train with a cosine schedule, keep the epoch of the best validation, and say what it is worth on tests.

    Returns:
        ``map_val``, ``map_test``; and of each epoch ``epoch_seconds`` and ``links_per_second``.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    questions = Questions.of(tables["next_purchases"])
    graph = Graph(tables, questions, "next_purchases")
    all_links = tables["next_items"]["question_id"], tables["next_items"]["product_id"]
    split = questions.split[all_links[0]]
    links = all_links[0][split == 0], all_links[1][split == 0]
    model = Peer(graph, len(fanouts), width, out=width, learnt="products")
    learnt = list(model.learnt.parameters())
    rest = [each for name, each in model.named_parameters() if not name.startswith("learnt")]
    optimizer = torch.optim.Adam([{"params": rest, "lr": lr}, {"params": learnt, "lr": embed_lr}])
    steps = sum(-(-count // batch_size) for count in np.unique(questions.asked[links[0]], return_counts=True)[1])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    num_products = graph.counts["products"]

    def rows(
        of_questions: np.ndarray, products: np.ndarray, when: int, draws: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        seeds = {graph.table: of_questions, "products": products}
        asked = np.full(len(of_questions) + len(products), when)
        found = model(graph, sample(graph, seeds, asked, fanouts, draws, last=last), asked)
        return found[graph.table], found["products"]

    def precision(of_split: int) -> float:
        draws, mine = np.random.default_rng(seed), np.flatnonzero(questions.split == of_split)
        wanted = np.zeros((len(mine), num_products), bool)
        chosen = split == of_split
        wanted[np.searchsorted(mine, all_links[0][chosen]), all_links[1][chosen]] = True
        when = int(questions.asked[mine[0]])
        model.eval()
        with torch.no_grad():
            parts = []
            for each in batches(mine, batch_size):
                some, every = rows(each, np.arange(num_products), when, draws)
                parts.append((some @ every.T).numpy())
        return mean_precision(np.concatenate(parts), wanted)

    seconds, best = list[float](), (0.0, 0.0)
    for _ in range(epochs):
        begun, total = time.perf_counter(), 0.0
        model.train()
        for asking, bought in of_one_time(links, questions.asked, batch_size, random):
            others = random.integers(num_products, size=(len(asking), negatives))
            of_questions, from_question = np.unique(asking, return_inverse=True)
            products, candidates = np.unique(np.column_stack([bought, others]), return_inverse=True)
            optimizer.zero_grad()
            some, every = rows(of_questions, products, int(questions.asked[asking[0]]), random)
            picked = every[torch.from_numpy(candidates.reshape(len(asking), -1))]
            scores = torch.einsum("nd,nkd->nk", some[torch.from_numpy(from_question)], picked)
            loss = functional.cross_entropy(scores, torch.zeros(len(asking), dtype=torch.long))
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(asking)
        seconds.append(time.perf_counter() - begun)
        now = precision(1), precision(2)
        best = max(best, now)
        say(f"plain PyTorch, epoch {len(seconds)}: loss {total / len(links[0]):.3f}, {now[0]:.4f} {now[1]:.4f}")
    rates = [len(links[0]) / each for each in seconds]
    return {"map_val": best[0], "map_test": best[1], "epoch_seconds": seconds, "links_per_second": rates}
