"""Who answers where Prefect's server is expected; deployments of a running one: `test_stack.py`."""

import socket

import pytest

from flows import checkup
from flows.server import Occupant
from rulka.doctor.finding import State

HERE, THERE = "http://127.0.0.1:{}/api", "https://host.example/api"


@pytest.mark.parametrize("found", [Occupant.OTHER_SERVER, Occupant.OTHER_PROGRAM])
def test_a_port_held_by_somebody_else_is_wrong_and_who_is_named(
    toy_project: None, monkeypatch: pytest.MonkeyPatch, found: Occupant
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = HERE.format(taken.getsockname()[1])
        monkeypatch.setattr(checkup, "server_and_secret", lambda: (url, "me:x"))
        monkeypatch.setattr(checkup, "occupant", lambda *_: found)
        (server,) = checkup.server()
    assert server.state is State.WRONG
    assert server.text.startswith(f"{url} is taken by {found}, process ")
    assert "choose another port with PREFECT_API_URL=" in server.to_do


def test_nobody_is_fine_here_and_wrong_elsewhere(toy_project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "occupant", lambda *_: Occupant.NOBODY)
    for url, state in ((HERE.format(4200), State.OK), (THERE, State.WRONG)):
        monkeypatch.setattr(checkup, "server_and_secret", lambda url=url: (url, "me:x"))
        (server,) = checkup.server()
        assert server.state is state


def test_a_server_of_another_version_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup._version("url", checkup.installed).state is State.OK
    found = checkup._version("url", "3.0.0")
    assert found.state is State.WRONG
    assert found.text.startswith("url: runs with Prefect 3.0.0, and ")


def test_a_folder_that_cannot_be_written_leaves_the_server_open(
    toy_project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "unwritable_paths", lambda: ["."])
    (server,) = checkup.server()
    assert server.state is State.UNKNOWN
