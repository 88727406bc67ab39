"""Labels: from what the user wrote to the ``y`` column and its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float32, Int, Int64

from partita.core.errors import InputError
from partita.graph.metadata import CLASSES, MULTILABEL, REGRESSION
from partita.graph.metadata import TASKS as LABEL_TASKS
from partita.graph.writer import StoreWriter
from partita.sources.batch import Cells, Kind
from partita.sources.dialect import is_int, is_number

AUTO = "auto"
TASKS = (AUTO, *LABEL_TASKS)
"""What a user may say about labels."""

MOST_CLASSES = 1 << 20
"""More integer classes than this are taken for a mistake: a model has one output per class."""

_OUT_OF_RANGE = (
    f"label {{}} is out of range: integer classes are 0..{MOST_CLASSES - 1}",
    "Number the classes 0..C-1 (-1 means no label), or use names",
)
_MISSING = frozenset(["", "nan", "NaN", "NA", "N/A", "null", "NULL", "None"])


@dataclass(frozen=True)
class LabelSummary:
    """What was found.

    Attributes:
        task: "classes", "multilabel" or "regression".
        num_classes: classes, columns, or 1.
        class_names: the user's names of the classes, where they are not numbers.
        labeled: (N) which nodes have a label.
    """

    task: str
    num_classes: int
    class_names: list[str] | None
    labeled: Bool[np.ndarray, "N"]


@runtime_checkable
class Labels(Protocol):
    """Takes labels batch by batch and writes ``y`` at the end."""

    kind: Kind
    """What to read text cells as."""

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """The labels of some nodes are in these columns of a batch."""

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """Write the column."""


def make_labels(
    task: str, kinds: Sequence[Kind | None], names: Sequence[str] | None, num_nodes: int, where: str
) -> Labels:
    """Choose how to read labels.

    Args:
        task: as the user says; "auto": several columns are a multi-label task, floats a regression, all else classes.
        kinds: what each label column seems to hold.
        names: of the columns, where the user gave them names.
        num_nodes: N.
        where: the file, for messages.

    Raises:
        InputError: several label columns for a task that has one.
    """
    if task == MULTILABEL or (task == AUTO and len(kinds) > 1):
        return MultiLabels(num_nodes, len(kinds), names)
    if len(kinds) != 1:
        what = f"there are {len(kinds)} label columns, but task={task} has one label per node"
        raise InputError(what, where=where, fix="Name one label column, or use task=multilabel")
    if task == REGRESSION or (task == AUTO and kinds[0] == "float"):
        return RegressionLabels(num_nodes)
    return ClassLabels(num_nodes, where, numbers_are_classes=task == CLASSES)


class ClassLabels:
    """One class per node: integers 0..C-1, or names, which are sorted. Empty cells and -1 mean no label.

    Args:
        num_nodes: N.
        where: the file, for messages about the labels as a whole.
        numbers_are_classes: numbers that are not integers are an error; otherwise they turn the task into a regression.
    """

    kind: Kind = "str"

    def __init__(self, num_nodes: int, where: str, *, numbers_are_classes: bool) -> None:
        self._where = where
        self._numbers_are_classes = numbers_are_classes
        self._codes = np.full(num_nodes, -1, np.int64)  # the class, or the position in _texts
        self._texts: dict[str, int] = {}
        self._first: list[str] = []  # where each text of a number that is no class was first seen; else ""

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        import pyarrow as pa

        (column,) = columns
        kind = batch.columns[column].type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
            self._codes[nodes] = self._encode(batch, column)
        elif pa.types.is_floating(kind):
            values = batch.floats(column, missing=-1)
            values = np.where(np.isnan(values), -1, values)
            batch.check(values != np.floor(values), column, "label {} is not an integer", "Use task=regression")
            batch.check(np.abs(values) > MOST_CLASSES, column, *_OUT_OF_RANGE)
            self._put_ints(nodes, values.astype(np.int64), batch, column)
        else:
            self._put_ints(nodes, batch.ints(column, missing=-1), batch, column)

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        if not self._texts:
            return self._write_ints(writer, self._codes)
        texts = list(self._texts)
        words = [text for text in texts if text not in _MISSING]
        if all(is_number(word) for word in words):
            integral = all(is_int(word) for word in words)
            if not integral and not self._numbers_are_classes:
                numbers = [float("nan") if text in _MISSING else float(text) for text in texts]
                values = np.append(np.array(numbers, np.float32), np.float32("nan"))[self._codes]
                return _write_regression(writer, values)
            classes = [-1 if text in _MISSING else self._class_number(text) for text in texts]
            return self._write_ints(writer, np.append(np.array(classes, np.int64), -1)[self._codes])
        names = sorted(text for text in texts if text not in ("", "-1"))
        number = {name: position for position, name in enumerate(names)}
        y = np.array([*(number.get(text, -1) for text in texts), -1], np.int64)[self._codes]
        writer.write("y", y)
        return LabelSummary(CLASSES, len(names), names, y >= 0)

    def _encode(self, batch: Cells, column: int) -> Int64[np.ndarray, "n"]:
        encoded = batch.strings(column, missing="").dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        numbers = np.empty(len(encoded.dictionary), np.int64)
        for position, text in enumerate(encoded.dictionary.to_pylist()):
            if text not in self._texts:
                self._check_text(text, batch, column, codes == position)
            numbers[position] = self._texts.setdefault(text, len(self._texts))
        return numbers[codes]

    def _check_text(self, text: str, batch: Cells, column: int, here: Bool[np.ndarray, "n"]) -> None:
        where = ""
        if is_int(text) and not -1 <= int(text) < MOST_CLASSES:
            if text.startswith("-"):
                batch.check(here, column, *_OUT_OF_RANGE)
            where = batch.where(int(np.argmax(here)))
        elif not is_int(text) and is_number(text) and text not in _MISSING and len(self._first) < MOST_CLASSES:
            where = batch.where(int(np.argmax(here))) if self._numbers_are_classes else ""
        self._first.append(where)

    def _class_number(self, text: str) -> int:
        number = float(text)
        where = self._first[self._texts[text]] or self._where
        if not number.is_integer():
            raise InputError(f"label {text} is not an integer", where=where, fix="Use task=regression, or fix it")
        if not -1 <= number < MOST_CLASSES:
            raise InputError(_OUT_OF_RANGE[0].format(text), where=where, fix=_OUT_OF_RANGE[1])
        return int(number)

    def _put_ints(self, nodes: Int[np.ndarray, "n"], values: Int64[np.ndarray, "n"], batch: Cells, column: int) -> None:
        batch.check((values < -1) | (values >= MOST_CLASSES), column, *_OUT_OF_RANGE)
        self._codes[nodes] = values

    def _write_ints(self, writer: StoreWriter, y: Int64[np.ndarray, "N"]) -> LabelSummary:
        labeled = y >= 0
        if not labeled.any():
            raise InputError("no node has a label", where=self._where, fix="Leave the labels out, or name their column")
        writer.write("y", y)
        return LabelSummary(CLASSES, int(y.max()) + 1, None, labeled)


class RegressionLabels:
    """One number per node; an empty cell or NaN means no label."""

    kind: Kind = "float"

    def __init__(self, num_nodes: int) -> None:
        self._y = np.full(num_nodes, np.nan, np.float32)

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        (column,) = columns
        values = batch.floats(column, missing=np.nan)
        too_large = np.abs(values) > np.finfo(np.float32).max
        batch.check(too_large, column, "label {} is not a finite float32", "Correct the value or leave it empty")
        self._y[nodes] = values

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        return _write_regression(writer, self._y)


class MultiLabels:
    """Zeros and ones, one column per label. A node without a row has no label, and zeros."""

    kind: Kind = "float"

    def __init__(self, num_nodes: int, num_columns: int, names: Sequence[str] | None) -> None:
        self._y = np.zeros((num_nodes, num_columns), np.uint8)
        self._labeled = np.zeros(num_nodes, bool)
        self._names = None if names is None else list(names)

    def put(self, nodes: Int[np.ndarray, "n"], batch: Cells, columns: Sequence[int]) -> None:
        """See :class:`Labels`."""
        for position, column in enumerate(columns):
            values = batch.floats(column)
            fix = "Labels of a multi-label task are 0 or 1"
            batch.check((values != 0) & (values != 1), column, "label {} is neither 0 nor 1", fix)
            self._y[nodes, position] = values
        self._labeled[nodes] = True

    def finish(self, writer: StoreWriter) -> LabelSummary:
        """See :class:`Labels`."""
        writer.write("y", self._y)
        return LabelSummary(MULTILABEL, self._y.shape[1], self._names, self._labeled)


def _write_regression(writer: StoreWriter, y: Float32[np.ndarray, "N"]) -> LabelSummary:
    writer.write("y", y)
    return LabelSummary(REGRESSION, 1, None, ~np.isnan(y))
