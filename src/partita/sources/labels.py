"""Labels: from what the user wrote to the ``y`` column and its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from partita.core.arrow import as_numpy
from partita.core.errors import InputError, nearest
from partita.graph.metadata import CLASSES, MULTILABEL, REGRESSION
from partita.graph.metadata import TASKS as LABEL_TASKS
from partita.graph.writer import StoreWriter
from partita.sources.batch import Cells, Kind
from partita.sources.dialect import is_int, is_number
from partita.sources.encoding import Like

AUTO = "auto"
TASKS = (AUTO, *LABEL_TASKS)
"""What a user may say about labels."""

MOST_CLASSES = 1 << 20
"""More classes than this are taken for a mistake: a model has one output per class."""

NOTHING = "none"
"""What a user says where no label means that there is none."""

_MOST_WHOLE = 1000
_FEW = 20
_NONE = np.iinfo(np.int64).min
_UNSURE = frozenset(
    ["?", "-", "n.a.", "na", "n/a", "nan", "null", "none", "unknown", "unlabeled", "unlabelled", "missing"]
)
_MISSING = frozenset(["", "nan", "NaN", "NA", "N/A", "null", "NULL", "None"])


@dataclass(frozen=True)
class LabelRules:
    """What a user says about labels.

    Attributes:
        task: "auto", "classes", "multilabel" or "regression".
        where: the file, for messages.
        unlabeled: the label that means that a node has none; :data:`NOTHING`: no label does; ``None``: not said.
        keep_codes: integers are the classes themselves, also with gaps.
        by_convention: -1 means that a node has no label, as in arrays of PyG and OGB, unless ``unlabeled`` says else.
        like: the store whose classes these are, in its order.
    """

    task: str
    where: str
    unlabeled: str | None = None
    keep_codes: bool = False
    by_convention: bool = False
    like: Like | None = None


@dataclass(frozen=True)
class LabelSummary:
    """What was found.

    Attributes:
        task: "classes", "multilabel" or "regression".
        num_classes: classes, columns, or 1.
        class_names: names of the classes: the user's, or codes that are not 0..C-1; ``None`` for 0..C-1.
        labeled: (N) which nodes have a label.
        codes: of the classes, where they were integers with gaps; ``None`` else.
        sizes: nodes of every class or label; empty for a regression.
        notes: what a user should know.
    """

    task: str
    num_classes: int
    class_names: list[str] | None
    labeled: Bool[np.ndarray, "N"]
    codes: list[int] | None = None
    sizes: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@runtime_checkable
class Labels(Protocol):
    """Takes labels batch by batch and writes ``y`` at the end."""

    kind: Kind
    """What to read text cells as."""

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """The labels of some nodes are in these columns of a batch."""

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """Write the column."""


def make_labels(rules: LabelRules, kinds: Sequence[Kind | None], names: Sequence[str] | None, num_nodes: int) -> Labels:
    """Choose how to read labels.

    Args:
        rules: as the user says; with the task "auto" several columns are a multi-label task, numbers that are not
            whole a regression, all else classes.
        kinds: what each label column seems to hold.
        names: of the columns, where the user gave them names.
        num_nodes: N.

    Raises:
        InputError: several label columns for a task that has one.
    """
    if rules.task == MULTILABEL or (rules.task == AUTO and len(kinds) > 1):
        return MultiLabels(num_nodes, len(kinds), names)
    if len(kinds) != 1:
        what = f"there are {len(kinds)} label columns, but task={rules.task} has one label per node"
        raise InputError(what, where=rules.where, fix="Name one label column, or use task=multilabel")
    if rules.task == REGRESSION or (rules.task == AUTO and kinds[0] == "float"):
        return NumberLabels(num_nodes, rules)
    return ClassLabels(num_nodes, rules)


class ClassLabels:
    """One class per node: integers, or names, which are sorted. Empty cells mean no label.

    Args:
        num_nodes: N.
        rules: of the user. With the task "classes" numbers that are not whole are an error, else they turn the task
            into a regression.
    """

    kind: Kind = "str"

    def __init__(self, num_nodes: int, rules: LabelRules) -> None:
        self._rules = rules
        self._codes = np.full(num_nodes, _NONE)  # the integer, or the position in _texts
        self._texts: dict[str, int] = {}
        self._first: list[str] = []  # where each text of a number that is not whole was first seen; else ""

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        import pyarrow as pa

        (column,) = columns
        kind = batch.columns[column].type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
            self._codes[nodes] = self._encode(batch, column)
        elif pa.types.is_floating(kind):
            values = batch.floats(column, missing=np.nan)
            none = np.isnan(values)
            whole = none | (values == np.floor(values)) & (np.abs(values) < 2**53)
            batch.check(~whole, column, "label {} is not an integer", "Use task=regression")
            self._codes[nodes] = np.where(none, _NONE, np.where(none, 0, values).astype(np.int64))
        else:
            self._codes[nodes] = batch.ints(column, missing=int(_NONE))

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        if not self._texts:
            return _write_codes(writer, self._codes, self._rules)
        texts, said = list(self._texts), self._rules.unlabeled
        none = _MISSING | {said} if said not in (None, NOTHING) else _MISSING
        words = [text for text in texts if text not in none]
        if all(is_number(word) for word in words):
            if self._rules.task == AUTO and not all(is_int(word) for word in words):
                numbers = [float("nan") if text in none else float(text) for text in texts]
                return _write_numbers(writer, np.append(numbers, np.nan)[self._chosen()], self._rules)
            codes = [_NONE if text in none else self._code(text) for text in texts]
            return _write_codes(writer, np.append(np.array(codes, np.int64), _NONE)[self._chosen()], self._rules)
        names = sorted(text for text in texts if text not in ("", said))
        if "-1" in names and said is None:
            raise _ask(self._rules, int(np.count_nonzero(self._codes == self._texts["-1"])))
        number = {name: position for position, name in enumerate(names)}
        y = np.array([*(number.get(text, -1) for text in texts), -1], np.int64)[self._chosen()]
        doubtful = [name for name in names if name.lower() in _UNSURE]
        notes = [f"{self._rules.where}: the label '{name}' is a class; --unlabeled '{name}' if it is none"
                 for name in doubtful]  # fmt: skip
        return _write_classes(writer, y, len(names), self._rules, names=names, notes=notes)

    def _chosen(self) -> Int64[np.ndarray, "N"]:
        """Positions in the texts; the last one is for nodes that no row named."""
        return np.where(self._codes == _NONE, -1, self._codes)

    def _encode(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        encoded = batch.strings(column, missing="").dictionary_encode()
        codes = as_numpy(encoded.indices)
        numbers = np.empty(len(encoded.dictionary), np.int64)
        for position, text in enumerate(encoded.dictionary.to_pylist()):
            if text not in self._texts:
                odd = is_number(text) and not is_int(text) and text not in _MISSING
                keep = odd and self._rules.task == CLASSES and len(self._first) < MOST_CLASSES
                self._first.append(batch.where(int(np.argmax(codes == position))) if keep else "")
            numbers[position] = self._texts.setdefault(text, len(self._texts))
        return numbers[codes]

    def _code(self, text: str) -> int:
        number = int(text) if is_int(text) else float(text)
        if number != int(number) or abs(number) >= 2**53:
            where = self._first[self._texts[text]] or self._rules.where
            what = f"label {text} is not an integer below 2^53"
            raise InputError(what, where=where, fix="Use task=regression, or correct it")
        return int(number)


class NumberLabels:
    """One number per node; an empty cell or NaN means no label.

    With the task "auto", few distinct whole numbers are classes: programs write integers with gaps as ``1.0``.
    """

    kind: Kind = "float"

    def __init__(self, num_nodes: int, rules: LabelRules) -> None:
        self._rules = rules
        self._y = np.full(num_nodes, np.nan)

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        (column,) = columns
        values = batch.floats(column, missing=np.nan)
        too_large = np.abs(values) > np.finfo(np.float32).max
        batch.check(too_large, column, "label {} is not a finite float32", "Correct it or leave it empty")
        self._y[nodes] = values

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        return _write_numbers(writer, self._y, self._rules)


class MultiLabels:
    """Zeros and ones, one column per label. A node without a row, or with empty cells, has no label, and zeros."""

    kind: Kind = "float"

    def __init__(self, num_nodes: int, num_columns: int, names: Sequence[str] | None) -> None:
        self._y = np.zeros((num_nodes, num_columns), np.uint8)
        self._labeled = np.zeros(num_nodes, bool)
        self._names = None if names is None else list(names)

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        empty = np.isnan(batch.floats(columns[0], missing=np.nan))
        for position, column in enumerate(columns):
            values = batch.floats(column, missing=np.nan)
            fix = "Labels of a multi-label task are 0 or 1, or empty in all columns of a node without labels"
            batch.check(np.isnan(values) != empty, column, "one label is empty and another is not", fix)
            batch.check(~empty & (values != 0) & (values != 1), column, "label {} is neither 0 nor 1", fix)
            self._y[nodes, position] = np.where(empty, 0, values)
        self._labeled[nodes] = ~empty

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        writer.write("y", self._y)
        sizes = self._y.sum(0, dtype=np.int64).tolist()
        return LabelSummary(MULTILABEL, self._y.shape[1], self._names, self._labeled, sizes=sizes)


def _write_numbers(writer: StoreWriter, y: Float[np.ndarray, "N"], rules: LabelRules) -> LabelSummary:
    """Amounts; or classes, where the user did not say and few whole numbers occur again and again."""
    said = rules.unlabeled
    if said is not None and said != NOTHING and is_number(said):
        y = np.where(y == float(said), np.nan, y)
    labeled = ~np.isnan(y)
    given = y[labeled]
    distinct = np.unique(given)
    if (
        rules.task == AUTO
        and len(given)
        and (given == np.floor(given)).all()
        and len(distinct) <= min(_MOST_WHOLE if labeled.all() else MOST_CLASSES, len(given) // 2)
    ):
        codes = np.where(labeled, np.where(labeled, y, 0).astype(np.int64), _NONE)
        shown = ", ".join(f"{value:.1f}" for value in distinct[:3])
        note = f"{rules.where}: labels {shown}, ... are taken as classes; --task regression if they are amounts"
        return _write_codes(writer, codes, rules, notes=[note])
    writer.write("y", y.astype(np.float32))
    notes = []
    if rules.task == AUTO and len(given) and (given == np.floor(given)).all():
        notes.append(
            f"{rules.where}: the labels are whole numbers, taken as amounts; --task classes if they are classes"
        )
    return LabelSummary(REGRESSION, 1, None, labeled, notes=notes)


def _write_codes(
    writer: StoreWriter, codes: Int64[np.ndarray, "N"], rules: LabelRules, notes: Sequence[str] = ()
) -> LabelSummary:
    """Integers as classes: -1 where that means no label, and the others numbered 0..C-1 in their order."""
    said, notes = rules.unlabeled, list(notes)
    if said is not None and said != NOTHING and is_int(said):
        codes = np.where(codes == int(said), _NONE, codes)
    found = np.unique(codes[codes != _NONE])
    if said is None and len(found) and found[0] == -1:
        count = int(np.count_nonzero(codes == -1))
        if not rules.by_convention or found.tolist() == [-1, 1]:
            raise _ask(rules, count)
        notes.append(f"{rules.where}: {count:,} nodes with the label -1 have none; --unlabeled none if -1 is a class")
        codes, found = np.where(codes == -1, _NONE, codes), found[1:]
    if rules.task == AUTO and len(found) > max(_FEW, int(np.count_nonzero(codes != _NONE)) // 2):
        notes.append(f"{rules.where}: {len(found):,} labels are as many classes; --task regression if they are amounts")
    if len(found) and (rules.keep_codes or (found[-1] == len(found) - 1 and found[0] == 0)):
        if found[0] < 0 or found[-1] >= MOST_CLASSES:
            what = f"label {found[0] if found[0] < 0 else found[-1]} cannot be kept: classes are 0..{MOST_CLASSES - 1}"
            raise InputError(what, where=rules.where, fix="Leave keep_codes out")
        y = np.where(codes == _NONE, -1, codes)
        return _write_classes(writer, y, int(found[-1]) + 1, rules, notes=notes)
    y = np.where(codes == _NONE, -1, np.searchsorted(found, codes))
    if len(found):
        shown = ", ".join(map(str, found[:3].tolist()))
        notes.append(
            f"{rules.where}: the labels {shown}, ... are codes of {len(found):,} classes, which keep them as names"
        )
    names = [str(code) for code in found.tolist()]
    return _write_classes(writer, y, len(found), rules, names=names, codes=found.tolist(), notes=notes)


def _write_classes(
    writer: StoreWriter,
    y: Int64[np.ndarray, "N"],
    num_classes: int,
    rules: LabelRules,
    *,
    names: list[str] | None = None,
    codes: list[int] | None = None,
    notes: Sequence[str] = (),
) -> LabelSummary:
    labeled = y >= 0
    if not labeled.any():
        raise InputError("no node has a label", where=rules.where, fix="Leave the labels out, or name their column")
    if num_classes > MOST_CLASSES:
        what = f"there are {num_classes:,} classes, more than {MOST_CLASSES:,}"
        raise InputError(what, where=rules.where, fix="Use task=regression, or name the column of the labels")
    if rules.like is not None and rules.like.task is not None:
        given = names or [str(number) for number in range(num_classes)]
        y, names, codes = _as_classes(y, given, rules, rules.like), list(rules.like.classes), None
        num_classes, names = len(names), names if rules.like.named else None
    writer.write("y", y)
    sizes = np.bincount(y[labeled], minlength=num_classes).tolist()
    return LabelSummary(CLASSES, num_classes, names, labeled, codes, sizes, list(notes))


def _as_classes(
    y: Int64[np.ndarray, "N"], names: Sequence[str], rules: LabelRules, like: Like
) -> Int64[np.ndarray, "N"]:
    """Labels as the classes of another store."""
    if like.task != CLASSES:
        raise InputError(f"the labels are classes, those of the other store a {like.task}", where=rules.where)
    known = {name: number for number, name in enumerate(like.classes)}
    used = np.bincount(y[y >= 0], minlength=len(names)) > 0
    strange = [name for name, there in zip(names, used) if there and name not in known]
    if strange:
        what = f"the other store has no class '{strange[0]}'"
        raise InputError(what, where=rules.where, fix=nearest(strange[0], like.classes))
    return np.array([*(known.get(name, -1) for name in names), -1], np.int64)[y]


def _ask(rules: LabelRules, count: int) -> InputError:
    return InputError(
        f"{count:,} nodes have the label -1, which is a class, or means that they have no label",
        where=rules.where,
        fix="Say which: --unlabeled -1 if they have none, --unlabeled none if it is a class",
    )
