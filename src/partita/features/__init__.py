"""Input rows: where they lie, and how a layer reads only what it needs of them."""
