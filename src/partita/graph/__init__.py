"""The graph store: a directory of memory-mapped columns, and what makes, checks and generates one."""
