"""Tables for notebooks escape what they show."""

from __future__ import annotations

from partita.core.html import facts_table


def test_names_and_values_are_escaped() -> None:
    table = facts_table("<b>run</b> & co", {"<i>": 1234567, "name": "<script>alert('x')</script>"})
    assert "1,234,567" in table
    assert "&lt;script&gt;" in table
    assert not any(tag in table for tag in ("<script>", "<i>", "<b>run"))
