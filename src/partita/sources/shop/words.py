"""Words that the shop's products are described with, and that its customers write."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int64

from partita.sources.shop.world import CATEGORIES

_ADJECTIVES = (
    "small", "large", "light", "heavy", "green", "blue", "red", "plain", "folding", "classic", "modern", "handmade",
)  # fmt: skip
_NOUNS = {
    "books": "novel atlas cookbook diary poems biography",
    "garden": "spade hose seeds planter rake gloves",
    "kitchen": "pan kettle knife bowl whisk board",
    "lamps": "shade bulb stand dimmer lantern cable",
    "music": "guitar strings drum flute stand metronome",
    "office": "stapler folder pen lamp calendar tray",
    "outdoor": "tent stove backpack rope map bottle",
    "pets": "leash basket brush bowl collar toy",
    "shoes": "laces boots sandals insoles polish trainers",
    "tools": "hammer drill saw pliers level clamp",
    "toys": "blocks puzzle kite train doll marbles",
}
_OPINIONS = {
    1: "broke bad returned useless never disappointed",
    2: "weak poor noisy expected more late",
    3: "fine okay average does its job",
    4: "good nice works solid happy useful",
    5: "great excellent love perfect best recommended",
}
_SILENT = 0.4
"""Share of the reviews without text."""


def descriptions(category: Int64[np.ndarray, "P"], random: np.random.Generator) -> Any:
    """Five words for each product; returns an Arrow array of text."""
    nouns = np.array([_NOUNS[name].split() for name in CATEGORIES])
    chosen = [np.array(_ADJECTIVES)[random.integers(0, len(_ADJECTIVES), len(category))] for _ in range(2)]
    chosen += [nouns[category, random.integers(0, nouns.shape[1], len(category))] for _ in range(3)]
    return _joined(chosen)


def opinions(rating: Int64[np.ndarray, "n"], random: np.random.Generator) -> Any:
    """Three words for each review, of what its rating is; returns an Arrow array of text with gaps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = np.array([_OPINIONS[stars].split()[:5] for stars in sorted(_OPINIONS)])
    texts = _joined([words[rating - 1, random.integers(0, words.shape[1], len(rating))] for _ in range(3)])
    return pc.if_else(pa.array(random.random(len(rating)) < _SILENT), pa.scalar(None, pa.string()), texts)


def _joined(words: list[np.ndarray]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*(pa.array(each.tolist(), pa.string()) for each in words), " ")
