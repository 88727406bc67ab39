"""Relational databases as typed graphs: rows of tables are nodes, foreign keys are edges."""
