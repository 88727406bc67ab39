"""Where numba has no wheel yet: everything works on the reference kernels, and draws the same samples."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_RUN = """
import sys
if sys.argv[1] == "blocked":
    sys.modules["numba"] = None
import json
import partita
from partita.graph.verify import verify
folder = sys.argv[2]
with open(f"{folder}/edges.csv", "w") as file:
    file.writelines(f"n{i},n{(i * 7 + j) % 90}\\n" for i in range(90) for j in (1, 3, 4, 11))
with open(f"{folder}/nodes.csv", "w") as file:
    file.write("id,a,b,label\\n")
    file.writelines(f"n{i},{i % 5},{i % 3},{i % 4}\\n" for i in range(90))
partita.ingest(f"{folder}/edges.csv", f"{folder}/graph", nodes=f"{folder}/nodes.csv", undirected=True)
verify(f"{folder}/graph")
result = {"fingerprint": partita.open(f"{folder}/graph").fingerprint}
for model in ("sage", "gat"):
    run = partita.Trainer(f"{folder}/graph", out=f"{folder}/{model}", model=model, layers=2, hidden=8, fanout="3,2",
                          batch_size=8, epochs=2, precision="float64", seed=1).fit()
    result[model] = {"counts": run.record["counts"], "metrics": run.metrics}
assert ("numba" in sys.modules and sys.modules["numba"] is not None) == (sys.argv[1] != "blocked")
print(json.dumps(result))
"""


def test_the_reference_kernels_give_the_same_run(tmp_path) -> None:
    results = {}
    for mode in ("blocked", "compiled"):
        (tmp_path / mode).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", _RUN, mode, tmp_path / mode], capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        results[mode] = json.loads(done.stdout)
    assert results["blocked"]["fingerprint"] == results["compiled"]["fingerprint"]
    for model in ("sage", "gat"):
        assert results["blocked"][model]["counts"] == results["compiled"][model]["counts"]
        for split, metrics in results["compiled"][model]["metrics"].items():
            assert results["blocked"][model]["metrics"][split] == pytest.approx(metrics, rel=1e-9)
