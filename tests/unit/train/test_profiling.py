"""What PyTorch's profiler shows of a run."""

from __future__ import annotations

from collections import Counter

import pytest
from torch.profiler import ProfilerActivity, profile

import partita
from partita.testing.graphs import small_random_store


@pytest.mark.parametrize("prefetch", [0, 2])
def test_stages_and_kernels_have_names_in_a_profile(tmp_path, prefetch, all_threads) -> None:
    store = small_random_store(tmp_path / "g", 200, 1200)
    trainer = partita.Trainer(
        store, out=tmp_path / "run", layers=2, hidden=8, fanout="4,3", batch_size=16, epochs=1, prefetch=prefetch,
        eval_every=0,
    )  # fmt: skip
    with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as found:
        trainer.fit()
    counts = Counter(event.name for event in found.events() if event.name.startswith("partita::"))
    steps = counts["partita::forward"]
    assert steps > 1
    for stage in ("sample", "wait_for_batch", "backward", "sum_gradients", "optimizer"):
        assert counts[f"partita::{stage}"] == steps
    drawn = [event.cpu_parent for event in found.events() if event.name == "partita::sample_neighbors"]
    assert sum(parent is not None and parent.name == "partita::sample" for parent in drawn) == 2 * steps
