"""An error crosses as JSON and is the same error on the other side."""

from __future__ import annotations

import errno
import json

import pytest

from partita.comm.errors import PeerLost, WorkerError, WorkerLost, pack_error, peer_errors, unpack_error
from partita.core.errors import ConfigError, PartitaError, ResourceError, StoreError
from partita.sources.text import NotOfKindError


def crossed(error: BaseException, rank: int = 3) -> Exception:
    return unpack_error(json.loads(json.dumps(pack_error(error, rank))))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize("kind", [StoreError, ConfigError, WorkerLost])
def test_typed_errors_keep_type_and_fields(kind: type[PartitaError]) -> None:
    error = crossed(kind("is damaged", where="/graph/x.npy", fix="Ingest again"))
    assert type(error) is kind
    assert (error.what, error.where, error.fix) == ("is damaged", "/graph/x.npy", "Ingest again")
    assert str(error) == "/graph/x.npy: is damaged. Ingest again"
    assert error.__notes__ == ["In worker 3"]


def test_a_type_with_a_constructor_of_its_own() -> None:
    error = crossed(NotOfKindError("'x' is no number", "int", where="edges.csv", fix="Mend it"))
    assert type(error) is NotOfKindError
    assert str(error) == "edges.csv: 'x' is no number. Mend it"


def test_a_type_of_others_becomes_its_base() -> None:
    class MyStoreError(StoreError):
        def __init__(self, number: int) -> None:
            super().__init__(f"number {number}")

    error = crossed(MyStoreError(7))
    assert type(error) is StoreError
    assert error.what == "number 7"


def test_bugs_carry_their_traceback_once() -> None:
    error = crossed(raised(KeyError("fanout")))
    assert isinstance(error, WorkerError)
    assert str(error) == "worker 3 failed: KeyError: 'fanout'"
    assert "raise error" in error.remote_traceback
    again = crossed(raised(error), rank=0)
    assert str(again) == str(error)
    assert len(again.__notes__) == 1


def test_a_second_crossing_keeps_the_first_worker() -> None:
    error = crossed(raised(crossed(StoreError("is damaged"), rank=2)), rank=0)
    assert error.__notes__ == ["In worker 2"]


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"), "7.45 GiB were asked for"),
        (MemoryError(), "of unknown size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."), "64 bytes were"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"), "2.00 GiB were asked for"),
        (RuntimeError("std::bad_alloc"), "of unknown size"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "of unknown size"),
    ],
)
def test_memory_that_ran_out_is_typed_with_need_and_have(error: Exception, asked: str) -> None:
    found = crossed(raised(error))
    assert isinstance(found, ResourceError)
    assert asked in str(found)
    assert "bytes can be had (" in str(found)
    assert "--batch-size" in str(found)
    assert "In worker 3" in found.__notes__


def test_a_backend_without_memory_has_lost_no_peer() -> None:
    with pytest.raises(ResourceError), peer_errors():
        raise RuntimeError("std::bad_alloc")


def test_what_follows_from_a_lost_peer_is_known() -> None:
    def wrapped(cause: Exception) -> Exception:
        try:
            raise cause
        except Exception as error:
            try:
                raise KeyError("batch") from error
            except KeyError as outer:
                return outer

    assert pack_error(PeerLost("reset"), 0)["consequence"]
    assert pack_error(wrapped(PeerLost("reset")), 0)["consequence"]
    assert not pack_error(wrapped(ValueError("x")), 0)["consequence"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "[/src/pair.cc:5] Connection closed by peer [::1]:8. Check the logs. GLHF!",
            "Connection closed by peer [::1]:8",
        ),
        ("Timed out.\nException raised from x", "Timed out"),
        ("", "RuntimeError"),
    ],
)
def test_what_the_backend_says(said: str, reason: str) -> None:
    with pytest.raises(PeerLost) as caught, peer_errors():
        raise RuntimeError(said)
    assert caught.value.what == f"communication with another worker failed: {reason}"
