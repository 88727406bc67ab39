"""What two runs have in common that have trained the same."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(run: Path) -> str:
    """Of the tensors in a run's latest checkpoint: model, optimizer and learnt rows."""
    latest = max((run / "checkpoints").glob("epoch-*"))
    files = sorted(latest.glob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
