"""The type checker that enforces annotations while testing."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

# An int is accepted where a float is asked for, as type checkers do.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
