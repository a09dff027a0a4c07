"""Cluster address, and the errors if there is no cluster."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rulka.machine.errors import UserError
from rulka.runtime import cluster
from rulka.runtime.cluster import CLUSTER_VARIABLE, RayCluster, chosen_address, find_cluster


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert chosen_address() is None
    Path(".env").write_text("RULKA_GAME_PORT=1\nRULKA_CLUSTER=10.0.0.1:6379\n")
    assert chosen_address() == "10.0.0.1:6379"
    monkeypatch.setenv(CLUSTER_VARIABLE, "node:1")
    assert chosen_address() == "node:1"


@pytest.mark.parametrize("address", ["here", "host:", ":6379", "host:0", "host:70000", "host:port", "ray://host:10001"])
def test_what_is_no_address_is_named_with_what_would_be(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER_VARIABLE, address)
    with pytest.raises(UserError, match="is no address of a cluster's head") as error:
        chosen_address()
    assert "RULKA_CLUSTER=127.0.0.1:6379" in error.value.hint


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A reserved port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setenv(CLUSTER_VARIABLE, f"127.0.0.1:{port}")
        yield port


def test_what_is_missing_is_said_first(free_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no cluster at 127.0.0.1:{free_port}, .*: Connection refused"):
        find_cluster()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CLUSTER_VARIABLE)
    with pytest.raises(UserError, match="nothing says where the cluster is: RULKA_CLUSTER is not set"):
        find_cluster()
    monkeypatch.setattr(cluster, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="a cluster needs Ray, which is not installed") as error:
        find_cluster()
    assert error.value.hint == "pip install 'rulka[ray]'"


def test_a_silent_cluster_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    never = threading.Event()
    monkeypatch.setattr(cluster, "load_ray", lambda _address: SimpleNamespace(init=lambda **_settings: never.wait()))
    monkeypatch.setattr(cluster, "JOIN_NOTICE_S", 0.01)
    monkeypatch.setattr(cluster, "JOIN_LIMIT_S", 0.02)
    with pytest.raises(UserError, match="cluster at node:1 cannot be joined: who listens there does not answer"):
        RayCluster("node:1")
    never.set()
    assert "the cluster at node:1 does not answer yet" in caplog.text
