"""What can be foreseen of a generated shop, and by whom: ``python bench/shop.py --folder DIR [--json]``.

Makes the database of a shop with known rules (``partita generate shop``; with the sizes of these options, 1.6 million
rows), and predicts who stays away (churn) and what is bought next:

- churn, area under the ROC curve: gradient boosting (scikit-learn: ``pip install scikit-learn``) on columns about each
  customer, as they were known when the question was asked; the same with columns on what others think of what the
  customer bought, made by hand for the planted rule; a typed GraphSAGE in plain PyTorch with neighbors drawn by time in
  NumPy (see ``shop_peer.py``); Partita by its commands; and at best: the probabilities of the simulation itself;
- next purchases, MAP@10: by popularity, by the customer's past, by what is bought together; by the plain model and by
  Partita (``--ways items,peer-items,partita-items``), in batches of one time; and at best.

Questions are for training, validation and tests by time. The epoch of the best area on validation questions counts.
Times are medians over epochs, of two threads unless ``--threads`` says otherwise. Sampled edges per second are those of
the time of epochs; of the peer, which samples and computes in turns, also those of the time of sampling alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shop_data import Columns, Questions, read
from shop_flat import area, boosted, flat_columns, neighbors_columns
from shop_items import mean_precisions
from shop_items_peer import trained_items
from shop_peer import Graph, trained

import partita
from partita.sources.shop.business import Business
from partita.sources.shop.options import ShopOptions

Row = dict[str, Any]
RATES = ("edges_per_second", "sampler")
TABLES = "customers,products,purchases,reviews"
"""Of the shop, without questions."""


def churn(path: Path, simulated: Business | None, options: argparse.Namespace) -> list[Row]:
    """Areas of all ways but Partita's."""
    tables = read(path)
    questions, churned = Questions.of(tables["churn"]), tables["churn"]["churned"]

    def row(way: str, scores: np.ndarray) -> Row:
        val, test = (area(scores[questions.split == split], churned[questions.split == split]) for split in (1, 2))
        say(f"{way}: {val:.4f} {test:.4f}")
        return {"way": way, "auc_val": val, "auc_test": test}

    found = list[Row]()
    if "flat" in options.ways:
        flat = flat_columns(tables, questions)
        found.append(row("boosting, flat columns", boosted(flat, churned, questions.split, options.seed)))
        more = flat | neighbors_columns(tables, questions)
        found.append(row("boosting, columns of neighbors too", boosted(more, churned, questions.split, options.seed)))
    if "peer" in options.ways:
        graph = Graph(tables, questions)
        for layers in options.layers:
            result = trained(
                graph, questions, churned, fanouts=options.fanout[:layers], last=options.temporal_strategy == "last",
                width=options.hidden, epochs=options.epochs, batch_size=options.batch_size, lr=options.lr,
                most_train=options.train_questions, most_eval=options.eval_questions, seed=options.seed, say=say,
            )  # fmt: skip
            medians = {
                name: statistics.median(result.pop(name)) for name in ("epoch_seconds", "edges_per_second", "sampler")
            }
            found.append({"way": f"plain PyTorch, {layers} layers", **result, **medians})
    if simulated is not None:
        found.append(row("at best", np.concatenate(simulated.known)))
    return found


def of_partita(path: Path, split_times: tuple[str, str], options: argparse.Namespace) -> list[Row]:
    """Partita, by the commands that a user would give, with the settings of the peer."""
    found = list[Row]()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = Path(folder) / "store"
        times = ("--split-times", ",".join(split_times))
        try:
            command("ingest", path, store, "--tables", TABLES, "--label-column", "churn.churned", *times)
            for layers in options.layers:
                run = Path(folder) / f"run{layers}"
                record = command(
                    "train", store, "--out", run, "--model", "hetero-sage", "--layers", layers, "--hidden",
                    options.hidden, "--fanout", ",".join(map(str, options.fanout[:layers])), "--epochs",
                    options.partita_epochs, "--batch-size", options.batch_size, "--lr", options.lr, "--seed",
                    options.seed, "--threads", options.threads, "--dropout", 0, "--metric", "roc_auc",
                    "--temporal-strategy",
                    options.temporal_strategy, *options.partita,
                )  # fmt: skip
                lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
                seconds = [line["seconds"] for line in lines if line["event"] == "epoch"]
                areas = {
                    f"auc_{split}": metric(command("evaluate", run, "--split", split)) for split in ("val", "test")
                }
                edges = record["counts"]["sampled_edges"] / sum(seconds)
                found.append({
                    "way": f"Partita, {layers} layers", **areas, "epoch_seconds": statistics.median(seconds),
                    "edges_per_second": edges,
                })  # fmt: skip
        except RuntimeError as refused:
            found.append({"way": "Partita", "refused": str(refused)})
            say(f"Partita: {refused}")
    return found


def items_of_partita(path: Path, split_times: tuple[str, str], options: argparse.Namespace) -> Row:
    """Partita on next purchases, with the settings of the peer."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store, run = Path(folder) / "store", Path(folder) / "run"
        command(
            "ingest", path, store, "--tables", f"{TABLES},next_purchases", "--targets", "next_items", "--split-times",
            ",".join(split_times),
        )  # fmt: skip
        command(
            "train", store, "--out", run, "--task", "links", "--target-relations", "next_items", "--model",
            "hetero-sage", "--layers", len(options.items_fanout), "--hidden", options.hidden, "--fanout",
            ",".join(map(str, options.items_fanout)), "--temporal-strategy", options.temporal_strategy,
            "--time-cutoff", "batch", "--decoder", "dot", "--loss", "softmax", "--negatives", options.items_negatives,
            "--embed", f"products={options.hidden}", "--embed-lr", options.items_embed_lr, "--lr", options.items_lr,
            "--schedule", "cosine", "--dropout", 0, "--batch-size", options.items_batch_size, "--epochs",
            options.items_epochs, "--seed", options.seed, "--threads", options.threads, *options.partita,
        )  # fmt: skip
        lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        rates = [line["seeds_per_second"] for line in lines if line["event"] == "epoch"]
        val, test = (command("evaluate", run, "--split", split)["map@10"] for split in ("val", "test"))
        return {"map_val": val, "map_test": test, "links_per_second": statistics.median(rates)}


def items_of_peer(tables: dict[str, Columns], options: argparse.Namespace) -> Row:
    """The plain model on next purchases."""
    found = trained_items(
        tables, fanouts=options.items_fanout, last=options.temporal_strategy == "last", width=options.hidden,
        epochs=options.items_epochs, batch_size=options.items_batch_size, negatives=options.items_negatives,
        lr=options.items_lr, embed_lr=options.items_embed_lr, seed=options.seed, say=say,
    )  # fmt: skip
    return {**found, "links_per_second": statistics.median(found["links_per_second"])}


def next_purchases(
    path: Path, split_times: tuple[str, str], simulated: Business | None, options: argparse.Namespace
) -> list[Row]:
    """MAP@10 of all ways."""
    found = list[Row]()
    if "items" in options.ways:
        for way, (val, test) in mean_precisions(read(path), simulated).items():
            found.append({"way": way, "map_val": val, "map_test": test})
    if "peer-items" in options.ways:
        found.append({"way": "plain PyTorch", **items_of_peer(read(path), options)})
    if "partita-items" in options.ways:
        found.append({"way": "Partita", **items_of_partita(path, split_times, options)})
    return found


def command(*arguments: object) -> Row:
    """What a command of Partita's says with ``--json``; a ``RuntimeError`` with its message where it fails."""
    call = [sys.executable, "-c", "from partita.cli import main; main()", *map(str, arguments), "--json"]
    say("partita " + " ".join(call[3:]))
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "".join(each for each in done.stderr if not "\u2500" <= each <= "\u257f").split()  # without boxes
        raise RuntimeError(" ".join(words)[-300:] or f"exit code {done.returncode}")
    return json.loads(done.stdout)


def metric(evaluated: Row) -> float:
    """The area under the ROC curve, where the evaluation has it; NaN otherwise."""
    flat = {**evaluated, **evaluated.get("metrics", {})}
    return next((flat[name] for name in ("roc_auc", "auc", "auroc") if name in flat), float("nan"))


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def machine(options: argparse.Namespace) -> Row:
    """What the figures are of."""
    versions = {}
    for name in ("numpy", "torch", "scikit-learn"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": options.threads,
        "load": round(os.getloadavg()[0], 1), "python": platform.python_version(), "partita": partita.__version__,
        **versions,
    }  # fmt: skip


def print_tables(found: Row) -> None:
    made = found["generated"]
    print(f"{made['rows']:,} rows in {made['seconds']:.1f} s: {made['rows'] / made['seconds']:,.0f} rows per second\n")
    print("| churn | AUC val | AUC test | s per epoch | million sampled edges per s | of sampling alone |")
    print("|---|---|---|---|---|---|")
    for row in found["churn"]:
        if "refused" in row:
            print(f"| {row['way']} | {row['refused']} | | | | |")
            continue
        seconds = f"{row['epoch_seconds']:.1f}" if "epoch_seconds" in row else ""
        edges = [f"{row[each] / 1e6:.2f}" if each in row else "" for each in RATES]
        print(f"| {row['way']} | {row['auc_val']:.4f} | {row['auc_test']:.4f} | {seconds} | {' | '.join(edges)} |")
    print("\n| next purchases | MAP@10 val | MAP@10 test | links per s |\n|---|---|---|---|")
    for row in found["next_purchases"]:
        rate = f"{row['links_per_second']:,.0f}" if "links_per_second" in row else ""
        print(f"| {row['way']} | {row['map_val']:.4f} | {row['map_test']:.4f} | {rate} |")
    print("\n" + ", ".join(f"{name} {value}" for name, value in found["machine"].items()))


def measure(options: argparse.Namespace) -> Row:
    """Make a shop, and predict."""
    path = options.folder / options.database
    sizes = {"num_customers": options.customers, "num_products": options.products, "days": options.days}
    begun = time.perf_counter()
    shop = partita.generate_shop(path, **sizes, seed=options.seed, overwrite=True)
    rows = sum(shop.rows.values())
    found: Row = {"generated": {**sizes, "rows": rows, "seconds": time.perf_counter() - begun}, "tables": shop.rows}
    say(f"{rows:,} rows in {path}")
    simulated = None
    if "best" in options.ways:
        simulated = Business(ShopOptions(**sizes, seed=options.seed), knowing=True)
        for _ in simulated.days():
            pass
    found["churn"] = churn(path, simulated, options)
    if "partita" in options.ways:
        found["churn"] += of_partita(path, shop.split_times, options)
    found["next_purchases"] = next_purchases(path, shop.split_times, simulated, options)
    return {**found, "machine": machine(options)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the database and stores")
    parser.add_argument("--database", default="shop.db", help="its name: shop.db, shop.duckdb, or shop")
    parser.add_argument("--customers", type=int, default=20_000)
    parser.add_argument("--products", type=int, default=1_500)
    parser.add_argument("--days", type=int, default=720)
    parser.add_argument("--ways", default="flat,peer,best,items,partita", type=lambda text: text.split(","))
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4], help="of the models; 4 reach others' reviews")
    parser.add_argument("--fanout", type=int, nargs="+", default=[16, 16, 16, 10], help="of each relation, seeds first")
    parser.add_argument("--temporal-strategy", default="last", choices=("uniform", "last"), help="which neighbors")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--train-questions", type=int, default=20_000, help="of the peer, in each epoch, at random")
    parser.add_argument("--eval-questions", type=int, default=10**9, help="of the peer, at most, of each split")
    parser.add_argument(
        "--partita-epochs", type=int, default=2, help="of Partita, which trains on all questions in each"
    )
    parser.add_argument("--items-epochs", type=int, default=4, help="of models of next purchases, and so on:")
    parser.add_argument("--items-fanout", type=int, nargs="+", default=[16, 16, 4])
    parser.add_argument("--items-batch-size", type=int, default=1024)
    parser.add_argument("--items-negatives", type=int, default=32)
    parser.add_argument("--items-lr", type=float, default=0.003)
    parser.add_argument("--items-embed-lr", type=float, default=0.02)
    parser.add_argument("--partita", nargs="*", default=[], help="more options of partita train")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of tables")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    with redirect_stdout(sys.stderr):
        found = measure(options)
    if options.json:
        print(json.dumps(found))
    else:
        print_tables(found)


if __name__ == "__main__":
    main()
