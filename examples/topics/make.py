"""Makes the small data set of the demo: an invented library of articles that cite each other.

Writes ``citations.csv`` (source, target) and ``articles.csv`` (id, twelve word scores, topic, split) beside this file.
Articles of one topic cite each other more often, and their words are only a hint of the topic, so a model that looks
at neighbors does much better than one that does not.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
TOPICS = ("birds", "bridges", "cheese", "comets", "looms")
ARTICLES, CITATIONS, WORDS = 1500, 6000, 12


def main() -> None:
    """Write both files."""
    random = np.random.default_rng(1722)
    topic = random.integers(0, len(TOPICS), ARTICLES)
    center = random.normal(size=(len(TOPICS), WORDS))
    words = 0.5 * center[topic] + random.normal(size=(ARTICLES, WORDS))
    names = [f"a{number:04d}" for number in random.permutation(9000)[:ARTICLES]]
    split = random.permutation(np.repeat(["train", "val", "test"], [300, 300, 900]))

    members = [np.flatnonzero(topic == number) for number in range(len(TOPICS))]
    popularity = random.pareto(2.5, ARTICLES) + 1
    with (HERE / "citations.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["source", "target"])
        seen = set()
        while len(seen) < CITATIONS:
            source = int(random.integers(ARTICLES))
            pool = members[topic[source]] if random.random() < 0.75 else np.arange(ARTICLES)
            target = int(random.choice(pool, p=popularity[pool] / popularity[pool].sum()))
            if source != target and (source, target) not in seen:
                seen.add((source, target))
                writer.writerow([names[source], names[target]])
    with (HERE / "articles.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", *(f"word{number}" for number in range(WORDS)), "topic", "split"])
        for number in range(ARTICLES):
            scores = [f"{score:.2f}" for score in words[number]]
            writer.writerow([names[number], *scores, TOPICS[topic[number]], split[number]])


if __name__ == "__main__":
    main()
