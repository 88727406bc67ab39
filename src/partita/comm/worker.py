"""The process of a local worker, ``python -m partita.comm.worker FOLDER RANK``: :mod:`partita.comm.local` starts it."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import threading
import time
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PARENT_SECONDS = 0.5
"""How often to see whether the parent is alive."""


def main(folder: Path, rank: int) -> None:
    """Run the entry of the plan in ``folder`` as worker ``rank``; leave its result or its error there."""
    try:
        from partita.comm import local

        local.in_worker = True
        plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        threading.Thread(target=_end_with, args=(plan["parent"], folder), daemon=True).start()
        stacks = (folder / f"stacks-{rank}.txt").open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        sys.path[:] = plan["path"]
        sys.argv[:] = plan["command"]  # what the user has started, for records and messages
        os.environ.pop("PYTHONPATH", None)
        if plan["python_path"] is not None:
            os.environ["PYTHONPATH"] = plan["python_path"]
        _write(folder / f"result-{rank}.json", json.dumps(_work(plan, rank, folder)))
    except SystemExit as request:
        if isinstance(request.code, str):
            sys.stderr.write(request.code + "\n")
        _leave(request.code if isinstance(request.code, int) else int(request.code is not None))
    except BaseException as error:
        from partita.comm.errors import pack_error

        _write(folder / f"error-{rank}.json", json.dumps(pack_error(error, rank)))
        # Not through the interpreter's end, which would wait for threads that wait for other workers.
        _leave(1)


def _work(plan: dict[str, Any], rank: int, folder: Path) -> Any:
    import torch

    from partita.comm.context import Context
    from partita.core.memory import keeping_freed

    torch.set_num_threads(plan["threads"])
    entry = attrgetter(plan["qualname"])(_module(plan["module"], plan["file"]))
    context = Context.join(folder / "rendezvous", rank, plan["size"], **plan["context"])
    with keeping_freed():  # the exchange of 64 MiB is three times as fast
        value = entry(context, *plan["arguments"], **plan["keywords"])
    context.close()  # not where the entry failed: other threads may still wait for other workers
    return value


def _module(name: str, file: str | None) -> ModuleType:
    """The module of the entry: by its name, or else, for scripts and tests, by its file."""
    if name != "__main__":
        try:
            module = importlib.import_module(name)
            own = getattr(module, "__file__", None)
            if file is None or (own is not None and os.path.abspath(own) == file):
                return module
        except ModuleNotFoundError:
            if file is None:
                raise
    if file is None:
        raise ImportError(f"module {name} has no file: define the entry in one")
    # Not as __main__: what a script does under "if __name__" is for its own process.
    name = "__worker_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _end_with(parent: int, folder: Path) -> None:
    """End this process when its parent has ended, and remove what the parent would have removed."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _write(path: Path, text: str) -> None:
    """Write a file that is either there or not."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
