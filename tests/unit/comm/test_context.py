"""A run of one worker, and what the launcher's variables must say."""

from __future__ import annotations

import pytest

from partita.comm.context import Context
from partita.core.errors import ConfigError, StoreError

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_one_worker_needs_nothing() -> None:
    with Context.alone(purposes=("train", "sample")) as context:
        assert context.mesh.size == 1
        for axis in ("all", "workers", "hosts"):
            assert context.group(axis).size == 1
        assert context.group(purpose="sample") is not context.group()
        assert context.group() is context.group("all", "train")
        assert context.agree(lambda: {"a": 1}) == {"a": 1}
        context.check_same("configuration", {"seed": 1})
        with context.together("do nothing"):
            pass
        with pytest.raises(ValueError, match="no group all/load"):
            context.group(purpose="load")


def test_one_worker_raises_its_own_errors() -> None:
    context = Context.alone()
    error = StoreError("is damaged")
    with pytest.raises(StoreError) as caught, context.together("open the store"):
        raise error
    assert caught.value is error
    assert error.__notes__ == ["While trying to open the store"]
    with pytest.raises(ZeroDivisionError):
        context.agree(lambda: 1 / 0)


def test_no_launcher(variables: pytest.MonkeyPatch) -> None:
    assert Context.from_environment() is None


def test_a_launcher_of_one(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("RANK", "0")
    variables.setenv("WORLD_SIZE", "1")
    context = Context.from_environment()
    assert context is not None
    assert context.mesh.size == 1
    context.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "two", "WORLD_SIZE": "4"}, "RANK=two is not a whole number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 with WORLD_SIZE=4"),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is not set"),
        ({"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"}, "MASTER_PORT=x"),
    ],
)
def test_bad_variables_are_named(variables: pytest.MonkeyPatch, values: dict[str, str], message: str) -> None:
    for name, value in values.items():
        variables.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        Context.from_environment()


def test_no_cuda_device() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match="no CUDA device"):
        Context.alone("cuda")
