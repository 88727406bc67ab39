"""Virtual environments of the peers, made from the package index in a cache folder outside the repository.

    python bench/peers/environments.py [--cache FOLDER]

Each peer has an environment of its own, because their PyTorch versions exclude each other. An environment that is
complete is not made again. What cannot be installed is noted, and the harness says so under its table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_CACHE = Path("~/.cache/partita-bench")
ROOT = Path(__file__).resolve().parents[2]
STATE = "partita-bench.json"


@dataclass(frozen=True)
class Environment:
    """What one peer needs.

    Attributes:
        packages: as pip names them.
        alternatives: lists of packages of which one is wanted, the preferred first; built without isolation, against
            the PyTorch that is installed. The first that installs is kept.
    """

    packages: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...] = field(default=())


ENVIRONMENTS = {
    "pyg": Environment(
        ("torch==2.13.0", "torch-geometric==2.8.1", "numpy", "psutil", "setuptools", "wheel", "ninja"),
        alternatives=(("pyg-lib",), ("torch-scatter==2.1.2", "torch-sparse==0.6.18")),
    ),
    # The last version of DGL on the package index that has wheels for current Pythons; it needs this PyTorch.
    "dgl": Environment(
        ("torch==2.1.0", "torchdata==0.7.1", "dgl==2.1.0", "pydantic", "pyyaml", "pandas", "numpy<2", "psutil")
    ),
}


@dataclass(frozen=True)
class Made:
    """An environment that is there.

    Attributes:
        python: its interpreter.
        missing: what could not be installed, and why.
    """

    python: Path
    missing: dict[str, str]


def make(name: str, cache: Path) -> Made:
    """The environment of a peer, made where it is not there yet.

    Raises:
        RuntimeError: its packages cannot be installed.
    """
    folder = cache / name
    python, state, wanted = folder / "bin" / "python", folder / STATE, ENVIRONMENTS[name]
    key = [list(wanted.packages), [list(each) for each in wanted.alternatives]]
    if state.exists() and (found := json.loads(state.read_text()))["packages"] == key:
        return Made(python, found["missing"])
    print(f"making the environment of {name} in {folder} (minutes; logs there)", file=sys.stderr, flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    failed = _install(python, wanted.packages, folder / "install.log")
    if failed is not None:
        raise RuntimeError(f"{' '.join(wanted.packages)}: {failed} (all of it in {folder / 'install.log'})")
    missing = {}
    for number, packages in enumerate(wanted.alternatives):
        failed = _install(python, packages, folder / f"alternative{number}.log", "--no-build-isolation")
        if failed is None:
            break
        missing[" ".join(packages)] = failed
    state.write_text(json.dumps({"packages": key, "missing": missing}, indent=1))
    return Made(python, missing)


def _install(python: Path, packages: tuple[str, ...], log: Path, *options: str) -> str | None:
    """The last error of pip, or ``None`` where all went well."""
    # Without debug information templates compile in half the time.
    environment = {"MAX_JOBS": str(os.cpu_count() or 1), "CFLAGS": "-O3 -DNDEBUG -g0", **os.environ}
    environment.pop("FORCE_CUDA", None)  # a CPU build
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *options, *packages]
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    if done.returncode == 0:
        return None
    errors = [line for line in log.read_text(errors="replace").splitlines() if line.lower().startswith("error")]
    return errors[-1].strip() if errors else f"pip ended with {done.returncode}"


def cache_folder(given: Path) -> Path:
    """The folder of all environments.

    Raises:
        ValueError: it lies in the repository.
    """
    folder = given.expanduser().resolve()
    if folder.is_relative_to(ROOT):
        raise ValueError(f"{folder} lies in the repository; name another folder for --cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE)
    options = parser.parse_args()
    for name in ENVIRONMENTS:
        made = make(name, cache_folder(options.cache))
        print(f"{name}: {made.python}")
        for packages, why in made.missing.items():
            print(f"  not to be had: {packages}: {why}")


if __name__ == "__main__":
    main()
