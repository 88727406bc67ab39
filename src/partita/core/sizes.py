"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def parse_bytes(value: object) -> object:
    """Turn ``"512MiB"``, ``"2 GiB"`` or ``"1000000"`` into a number of bytes; anything else is passed through."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if match is None or match.group(2).lower() not in _UNITS:
        raise ValueError(f"'{value}' is not a size; write for instance 512MiB or 2GiB")
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])
