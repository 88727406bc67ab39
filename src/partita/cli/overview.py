"""What ``partita --help`` prints. It imports no command: the libraries of options take half a second to load."""

from __future__ import annotations

import shutil
import textwrap

COMPLETE = "_PARTITA_COMPLETE"
"""The variable by which a shell asks for completions."""
HELP_FLAGS = ("-h", "--help")
VERSION_FLAGS = ("-V", "--version")
COMMANDS: dict[str, dict[str, str]] = {
    "Graph stores": {
        "ingest": "Turn edges, and tables of features, labels and splits, into a graph store.",
        "generate": "Generate a synthetic graph store, or a database.",
        "inspect": "Show what a graph store holds, or what came of a run.",
        "verify": "Check every checksum and every index of a graph store, or all files of a run, or one checkpoint.",
        "split": "Hold edges of a graph out for link prediction: write a store that lists them instead.",
        "export": "Write the graph of a store as an .npz file, or the model of a run as a plain PyG model.",
    },
    "Training": {
        "train": "Train a model on a graph store.",
        "evaluate": "Evaluate a run on a split of its store or another one, with all neighbors of every node.",
        "predict": "Write the model's prediction for every node, by your own node ids, in the order of ingest.",
        "report": "Make one HTML page about runs, side by side, and about the parts of stores.",
    },
    "Several workers": {
        "partition": "Divide a graph's nodes among parts, and write a store in which every part owns one range of ids.",
        "quality": "Measure the partition of a store, or of an assignment file for it.",
        "plan": "Measure this machine, and say which strategy trains fastest on it, and why.",
        "measure": "Measure how fast workers exchange rows and sum tensors, and keep it for plans.",
        "presample": "Sample mini-batches as in training, and store how often each node and edge is sampled.",
        "shard": "Write what one host needs of a partitioned graph: a store with the rows of its own nodes only.",
    },
    "Shell": {"completion": "Print a script that completes commands and options in your shell."},
}
"""Every command with the first line of its help, in the groups and the order in which they are shown."""

_OPTIONS = {
    "--version  -V": "Print the version and exit.",
    "--debug": "Show tracebacks.",
    "--help     -h": "Show this message and exit.",
}
_EPILOG = (
    "Start with: partita generate sbm graph, then partita train graph --out run. "
    "Every command has examples: partita help train"
)


def overview(width: int | None = None) -> str:
    """The commands by group, the options that all share, and how to start; at most ``width`` columns wide."""
    width = min(width or shutil.get_terminal_size().columns, 100)
    lines = ["Usage: partita [OPTIONS] COMMAND [ARGS]...", ""]
    lines += textwrap.wrap("Trains graph neural networks on graphs too big or too slow for one device.", width)
    for group, rows in {**COMMANDS, "Options": _OPTIONS}.items():
        lines += ["", f"{group}:"]
        for name, text in rows.items():
            lines += textwrap.wrap(text, width, initial_indent=f"  {name:<13} ", subsequent_indent=" " * 16)
    return "\n".join([*lines, "", *textwrap.wrap(_EPILOG, width)]) + "\n"
