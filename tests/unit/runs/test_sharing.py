"""What the first worker has read reaches the others, to the bit."""

from __future__ import annotations

import pytest
import torch
from meters import bytes_sent

from partita.comm.threads import ThreadGroups
from partita.runs.checkpoint import share_model, share_tensors


@pytest.mark.parametrize("size", [1, 3])
def test_tensors_of_any_type_and_shape(size) -> None:
    tensors = {
        "wide": torch.randn(3, 5, dtype=torch.float64),
        "turned": torch.randn(4, 3).t(),
        "half": torch.randn(7).bfloat16(),
        "count": torch.tensor(12),
        "flags": torch.tensor([True, False]),
        "empty": torch.empty(0, 4),
    }
    groups = ThreadGroups(size)
    found = groups.run(lambda c: share_tensors(c.group("all"), tensors if c.mesh.rank == 0 else {}))
    for shared in found:
        assert shared.keys() == tensors.keys()
        for name, value in tensors.items():
            assert shared[name].dtype == value.dtype
            assert torch.equal(shared[name], value)
    sent = bytes_sent(groups)
    assert sum(sent.values()) == sent["metadata"]
    assert sent["metadata"] >= (size - 1) * sum(value.numel() * value.element_size() for value in tensors.values())


def test_a_model_with_buffers() -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)) for _ in range(3)]
    models[0](torch.rand(5, 3))
    ThreadGroups(3).run(lambda context: share_model(context, models[context.mesh.rank]))
    for model in models[1:]:
        for name, value in models[0].state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name
