"""Which interface the workers talk over: what the launcher's variables and the routes of the host say."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist

from partita.comm import rendezvous as module

NAME = "GLOO_SOCKET_IFNAME"
INTERFACES = {"lo": "127.0.0.1", "eth0": "192.168.1.10", "eth1": "10.0.0.10"}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two networks, whose own name, ``first``, stands for its loopback interface."""
    monkeypatch.setenv(NAME, "")
    monkeypatch.setenv("MASTER_PORT", "29500")
    found = {name: [SimpleNamespace(address=address)] for name, address in INTERFACES.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    routes = {"first": "127.0.0.1", "10.0.0.11": "10.0.0.10", "192.168.1.10": "192.168.1.10", "nowhere": ""}
    monkeypatch.setattr(module, "_address_towards", lambda host, port: routes[host])


@pytest.mark.parametrize(
    ("master", "rank", "others", "expected"),
    [
        ("192.168.1.10", 0, {}, "eth0"),
        ("192.168.1.10", 1, {}, "eth0"),
        ("first", 1, {0: "127.0.0.1", 3: "10.0.0.11"}, "eth1"),  # the first host itself: the way to the last one
        ("first", 0, {3: "10.0.0.11"}, "eth1"),
        ("first", 3, {0: "10.0.0.11"}, "eth1"),
        ("first", 1, {0: "127.0.0.1", 3: "127.0.0.1"}, "lo"),  # all on one machine
        ("first", 1, {0: "127.0.0.1", 3: ""}, "lo"),
        ("nowhere", 0, {}, ""),
    ],
)
def test_the_interface_leads_to_the_other_hosts(
    master: str, rank: int, others: dict[int, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", master)
    store = dist.HashStore()
    for other, address in others.items():
        store.set(f"partita/address/{other}", address)
    module._choose_interface(store, rank, 4)
    assert os.environ[NAME] == expected


def test_what_the_user_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "192.168.1.10")
    monkeypatch.setenv(NAME, "eth1")
    store = dist.HashStore()
    module._choose_interface(store, 0, 4)
    assert os.environ[NAME] == "eth1"
    assert store.get("partita/address/0") == b""  # others need not wait


def test_the_own_address_on_the_way_to_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert module._address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert module._address_towards("no such host", 1) == ""
