"""From users' files to a graph store: readers of every format, node ids, tables of nodes, and `ingest`."""
