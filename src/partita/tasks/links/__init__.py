"""Links: what a run learns where its seeds are edges."""
