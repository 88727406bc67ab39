"""``python -m partita``: the command, for launchers that start modules, as in ``torchrun -m partita``."""

from __future__ import annotations

from partita.cli.main import main

if __name__ == "__main__":
    main()
