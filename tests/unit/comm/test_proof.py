"""Only who knows the run's secret becomes a worker of it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from partita.comm import context as context_module
from partita.comm import proof
from partita.comm.errors import PeerUnproven
from partita.comm.local import run_local
from partita.comm.proof import Uninvited, prove, secret_of_environment
from partita.core.errors import ConfigError


def test_a_secret_comes_by_file_or_environment(tmp_path, monkeypatch) -> None:
    assert secret_of_environment() == b""
    monkeypatch.setenv("PARTITA_SECRET", "abc")
    assert secret_of_environment() == b"abc"
    file = tmp_path / "secret"
    monkeypatch.setenv("PARTITA_SECRET_FILE", str(file))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        secret_of_environment()
    file.write_text("from a file\n")
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="other users can read the secret"):
        secret_of_environment()
    file.chmod(0o600)
    assert secret_of_environment() == b"from a file"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="there is no secret in it"):
        secret_of_environment()


def meet_again(context, secrets: list[str], silent: int | None) -> str:
    """Challenge each other in another group; returns what came of it."""
    group, rank = dist.new_group(list(range(context.mesh.size))), context.mesh.rank
    if rank == silent:
        dist.barrier()  # until the others have given up
        return "silent"
    proof.ANSWER = proof.ANSWER / 30
    try:
        prove(group, range(context.mesh.size), rank, secrets[rank].encode())
    except (Uninvited, PeerUnproven) as error:
        said = f"{type(error).__name__}: {error.what}"
    else:
        said = "proven"
    if silent is not None:
        dist.barrier()
    return said


def test_workers_with_one_secret_prove_themselves() -> None:
    assert run_local(meet_again, 3, [["a", "a", "a"], None]) == ["proven"] * 3
    assert run_local(meet_again, 2, [["", ""], None]) == ["proven"] * 2


def test_a_worker_with_another_secret_is_refused() -> None:
    refused = "Uninvited: who connected as worker {} does not know the secret of this run"
    assert run_local(meet_again, 3, [["a", "a", "b"], None]) == [
        refused.format(2),
        refused.format(2),
        refused.format(0),
    ]


def test_a_worker_that_does_not_answer_is_refused() -> None:
    first, second = run_local(meet_again, 2, [["a", "a"], 1])
    assert second == "silent"
    assert first.startswith("PeerUnproven: a worker could not be connected, or another process connected in its place")


def on_another_device(context) -> list[bool]:
    """Make groups for another device (here one that takes no tensors); returns whether nothing of the run is lost."""
    used = []

    def recorded(group, members, rank, secret: bytes) -> None:
        used.append(secret)
        prove(group, members, rank, secret)

    other = torch.device("meta")
    context_module.prove = recorded
    context_module.choose = context_module.take = lambda *_: other
    before = context.pulse.signs.moves
    with context.on(other) as found:
        found.check_same("settings", {"seed": 1})
        return [found.device == other, bool(used) and all(map(len, used)), context.pulse.signs.moves > before + 1]


def test_groups_for_another_device_are_proven_and_watched() -> None:
    assert run_local(on_another_device, 2) == [[True] * 3] * 2


def test_answers_cannot_be_sent_back() -> None:
    challenge, own = b"1" * 32, b"2" * 32
    answers = {
        proof._answer(b"key", *who, *what) for who in ((0, 1), (1, 0)) for what in ((challenge, own), (own, challenge))
    }
    assert len(answers) == 4
    assert torch.frombuffer(bytearray(answers.pop()), dtype=torch.uint8).shape == (32,)
