"""Damaged columns that follow from others are made anew, byte for byte; others are refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.core.errors import StoreError
from partita.graph.verify import verify
from partita.sample.presample import presample
from partita.sample.repair import repair
from partita.testing.graphs import formula_store


@pytest.fixture
def store(tmp_path) -> Path:
    made = formula_store(tmp_path / "graph", weighted=True)
    presample(made.path, fanout=(2, 2), batch_size=8, epochs=2)
    return made.path


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-2] ^= 4
    file.write_bytes(content)


def files(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.glob("*.npy")}


@pytest.mark.parametrize("how", ["bit", "missing", "short"])
@pytest.mark.parametrize(
    "columns",
    [["self_loops"], ["edge_weight_quantised", "part_offsets"], ["presample_edge"], ["presample_node", "self_loops"]],
)
def test_what_follows_from_others_is_made_anew(store, columns, how) -> None:
    before = files(store)
    for name in columns:
        file = store / f"{name}.npy"
        if how == "bit":
            damage(file)
        elif how == "missing":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(StoreError):
        verify(store)
    done = "\n".join(repair(store))
    assert all(name in done for name in columns)
    assert verify(store)
    assert files(store) == before


def test_what_follows_from_nothing_is_refused_and_left(store) -> None:
    damage(store / "x.npy")
    damage(store / "self_loops.npy")
    before = files(store)
    with pytest.raises(StoreError, match=r"cannot be repaired: column 'x' is damaged and cannot be computed.*ingest"):
        repair(store)
    assert {name for name, content in files(store).items() if content != before[name]} == {"self_loops.npy"}
    damage(store / "indices.npy")
    damage(store / "self_loops.npy")  # whose edges are no longer known
    with pytest.raises(StoreError, match="the columns 'indices', 'self_loops', 'x' are damaged"):
        repair(store)


def test_parts_are_not_made_up(store, tmp_path) -> None:
    import partita

    parted = partita.partition(store, tmp_path / "two", parts=2, algorithm="random")
    path = Path(getattr(parted, "path", parted))
    damage(path / "part_offsets.npy")
    with pytest.raises(StoreError, match="part_offsets"):
        repair(path)


def test_a_sound_store_is_left_as_it_is(store) -> None:
    before = files(store)
    assert repair(store) == ["there is nothing to repair"]
    assert files(store) == before
    (store.parent / ".graph.unpacked-1-0123abcd").mkdir()
    assert repair(store) == ["removed .graph.unpacked-1-0123abcd, left by a killed command"]
