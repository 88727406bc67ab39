"""A made-up shop in a database of seven tables, whose rules are known: see :func:`partita.generate_shop`."""
