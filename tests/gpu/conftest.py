"""What the tests on a device share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu_imports import gpu_kernels


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The CUDA device, with its kernels compiled for it; skipped where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    torch.cuda.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        with gpu_kernels(interpreted=False):
            yield "cuda"
