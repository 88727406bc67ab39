"""Tasks: what a run learns from a store, and what it is judged by."""
