"""PyG's sampling by time, one repetition. Started by ``compare.py``, in PyG's environment.

PyG's ``NeighborLoader`` with ``time_attr`` calls pyg-lib, which is not on the package index. What it called before is
the operation of torch-sparse that is measured here, without the loader around it. It has times of nodes: a seed asks
for what is not later than its own time. Of each node it draws first, and then leaves out what is later.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
import torch_sparse  # noqa: F401 - its operations

NODE, EDGE = "node", ("node", "to", "node")
RELATION = "__".join(EDGE)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    arrays = np.load(settings["arrays"])
    colptr, row, times = (torch.from_numpy(arrays[name]).long() for name in ("indptr", "indices", "times"))
    fanouts = settings["fanouts"]
    sample = torch.ops.torch_sparse.hetero_temporal_neighbor_sample
    spent, edges, nodes = [], [], []
    for seeds in torch.from_numpy(arrays["seeds"]).long():
        begun = time.process_time()
        found, rows, _, _ = sample(
            [NODE], [EDGE], {RELATION: colptr}, {RELATION: row}, {NODE: seeds}, {RELATION: fanouts}, {NODE: times},
            len(fanouts), False, True,
        )  # fmt: skip
        spent.append(time.process_time() - begun)
        edges.append(rows[RELATION].numel())
        nodes.append(found[NODE].numel())
    print(json.dumps({"seconds": spent, "edges": edges, "nodes": nodes, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
