"""Builds what is released, and uses it as somebody would who has nothing else of the repository.

Run by ``make dist``: the sdist is built from the tree, the wheel from the sdist, and the wheel is installed in an
environment of its own, with the versions of ``constraints.txt``. There the command and the library have to work.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "src/partita/__init__.py", "tests")
"""That the sdist must have."""
TRAIN = """
import partita
store = partita.open("graph")
run = partita.Trainer("graph", out="run", layers=1, hidden=4, epochs=1, batch_size=32).fit(progress=False)
assert run.status == "finished", run.status
assert len(partita.predict("run").predicted) == store.num_nodes
"""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command prints; ends this one with its output where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(out: Path) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    for old in (*out.glob("*.whl"), *out.glob("*.tar.gz")):
        old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """See that nothing is missing, and that the wheel holds the package and nothing else."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in NEEDED if not any(each == name or each.startswith(f"{name}/") for each in held)]
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packed = {f"src/{name}" for name in names if name.endswith(".py")}
    strange = [name for name in names if not name.startswith(("partita/", "partita-"))]
    if missing or strange or packed != sources or sources - held:
        sys.exit(f"missing: {missing}; strange: {strange}; differ: {sorted((packed ^ sources) | (sources - held))}")
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        sys.exit("the wheel has no license")


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel in an environment of its own; train, predict and report there."""
    run(sys.executable, "-m", "venv", "env", cwd=folder)
    python, partita = folder / "env/bin/python", folder / "env/bin/partita"
    options = shlex.split(os.environ.get("PIP_ARGS", ""))
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *options)
    run(*pip, f"partita[report] @ {wheel.resolve().as_uri()}", cwd=folder)
    run(python, "-m", "pip", "check", cwd=folder)
    version = run(partita, "--version", cwd=folder).split()[-1]
    if f"-{version}-" not in wheel.name:
        sys.exit(f"{wheel.name} says that it is {version}")
    # Nothing of the repository, nor of another environment, can be imported.
    alone = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    run(partita, "generate", "sbm", "graph", "--nodes", "200", "--classes", "3", cwd=folder, **alone)
    run(python, "-I", "-c", TRAIN, cwd=folder, **alone)
    run(
        partita,
        "train",
        "graph",
        "--out",
        "two",
        "--workers",
        "2",
        "--epochs",
        "1",
        "--layers",
        "1",
        cwd=folder,
        **alone,
    )
    run(partita, "report", "run", "two", "--out", "report.html", cwd=folder, **alone)
    where = run(python, "-I", "-c", "import partita; print(partita.__file__)", cwd=folder)
    if not where.startswith(str(folder / "env")):
        sys.exit(f"not the installed package was used: {where}")


if __name__ == "__main__":
    made = Path(sys.argv[1]).resolve()
    made.mkdir(exist_ok=True)
    built = build(made)
    check_contents(*built)
    with tempfile.TemporaryDirectory() as temporary:
        use(built[1], Path(temporary).resolve())
    print(f"{built[0].name} and {built[1].name} are in {made}; the wheel works in an environment of its own")
