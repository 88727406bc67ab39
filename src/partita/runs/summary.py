"""What training returns; needs no torch, so that the command can show what its workers did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partita.config import read_yaml
from partita.core.html import facts_table
from partita.core.trust import names_code
from partita.runs.folder import RunFolder


@dataclass(frozen=True, slots=True, repr=False)
class RunSummary:
    """How a run ended.

    Attributes:
        path: the run folder.
        status: ``finished`` or ``interrupted``.
        record: the contents of ``run.json``.
    """

    path: Path
    status: str
    record: dict[str, Any]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the best checkpoint by split; empty for an interrupted run."""
        return self.record["metrics"]

    @property
    def names_code(self) -> bool:
        """Whether its settings name code of a user's own, so that who goes on with it has to trust it."""
        return any(map(names_code, read_yaml(RunFolder(self.path).config).values()))

    def _facts(self) -> dict[str, str]:
        """What to show of it."""
        record = self.record
        facts = {"status": self.status, "epochs": str(record.get("epoch", 0))}
        best = record.get("best")
        if best:
            facts["best"] = f"{best['metric']} {best['value']:.4f} in epoch {best['epoch']}"
        for split, metrics in (record.get("metrics") or {}).items():
            facts[split] = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        return facts

    def __repr__(self) -> str:
        facts = "; ".join(f"{name} {value}" for name, value in self._facts().items() if name != "status")
        return f"RunSummary({str(self.path)!r}, {self.status}: {facts})"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        return facts_table(f"Run {self.path}", self._facts())
