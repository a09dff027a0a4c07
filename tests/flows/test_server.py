import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, get_current_settings, temporary_settings
from prefect.states import Running, Scheduled

from flows.access import password
from flows.pipeline import pipeline
from flows.server import (
    Occupant,
    ServerError,
    address,
    api_url,
    close_abandoned_runs,
    close_missed_runs,
    occupant,
    server_and_secret,
)
from rulka.ports import reserved_port
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://192.0.2.1:4200/api", "which is not of the form"),
        ("http:///api", "which is not of the form"),
        ("http://127.0.0.1:4200", "which is not of the form"),
        ("https://127.0.0.1:4200/api", "which is not of the form"),
        ("http://127.0.0.1:42000000/api", "Port out of range"),
        ("http://127.0.0.1:web/api", "could not be cast"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(url: str, reason: str) -> None:
    with temporary_settings({PREFECT_API_URL: url}), pytest.raises(ServerError, match=reason):
        api_url()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_this_machine_has_three_names(host: str) -> None:
    with temporary_settings({PREFECT_API_URL: f"http://{host}:4200/api"}):
        assert api_url() == f"http://{host}:4200/api"


def test_our_password_is_sent_to_no_other_machine(toy_project: Path) -> None:
    assert address("https://192.0.2.1/api") == ("192.0.2.1", 443)
    with temporary_settings({PREFECT_API_AUTH_STRING: None}):
        ours = password()
    # Prefect knows ours by itself, from the file that prefect.toml names, where there was one when it was imported.
    for known in (None, ours):
        with temporary_settings({PREFECT_API_URL: "https://192.0.2.1/api", PREFECT_API_AUTH_STRING: known}):
            assert api_url() == "https://192.0.2.1/api"
            with pytest.raises(ServerError, match=r"is on another machine, and PREFECT_API_AUTH_STRING is not set"):
                server_and_secret()
    with temporary_settings({PREFECT_API_URL: "https://192.0.2.1/api", PREFECT_API_AUTH_STRING: "me:there"}):
        assert server_and_secret() == ("https://192.0.2.1/api", "me:there")


def planned_by_prefect(*runs: UUID) -> None:
    """Marks runs as made from a schedule, which only Prefect's scheduler can, and it does not run in tests."""
    database = get_current_settings().server.database.connection_url
    assert database is not None
    file = database.get_secret_value().partition("///")[2]
    with closing(sqlite3.connect(file, timeout=PATIENCE_S)) as connection, connection:
        for run in runs:
            changed = connection.execute("UPDATE flow_run SET auto_scheduled = 1 WHERE id = ?", [str(run)])
            assert changed.rowcount == 1


def test_a_program_that_is_no_server_of_prefect_is_told_from_nobody() -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}/api"
        assert occupant(url, "me:mine") is Occupant.NOBODY
        with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as other:
            Thread(target=other.serve_forever, args=(0.02,)).start()
            found = occupant(url, "me:mine")
            other.shutdown()
    assert found is Occupant.OTHER_PROGRAM


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
class TestRuns:
    def deployments(self, client: SyncPrefectClient) -> list[UUID]:
        flow = client.create_flow(pipeline)
        return [client.create_deployment(flow, name=name) for name in ("nightly", "other")]

    def test_a_dead_worker_costs_its_run_and_no_other(self, toy_project: Path) -> None:
        with get_client(sync_client=True) as client:
            deployment, _ = self.deployments(client)
            before = Scheduled(scheduled_time=datetime.now(UTC) - timedelta(hours=2))
            active = client.create_flow_run_from_deployment(deployment, state=before).id
            client.set_flow_run_state(active, Running(), force=True)
            waiting = client.create_flow_run_from_deployment(deployment, state=before).id
            planned_by_prefect(active, waiting)
            close_abandoned_runs()
            assert client.read_flow_run(active).state_name == "Crashed"
            assert client.read_flow_run(waiting).state_name == "Scheduled"
            client.delete_deployment(deployment)

    def test_of_the_nights_that_were_missed_one_is_made_up_for(self, toy_project: Path) -> None:
        now = datetime.now(UTC)
        with get_client(sync_client=True) as client:
            nightly, other = self.deployments(client)

            def plan(deployment: UUID, days: float) -> UUID:
                state = Scheduled(scheduled_time=now + timedelta(days=days))
                return client.create_flow_run_from_deployment(deployment, state=state).id

            nights = [plan(nightly, days) for days in (-2, -3, -1, 1)]
            once, asked_for = plan(other, -2), plan(nightly, -9)
            planned_by_prefect(*nights, once)
            assert close_missed_runs() == 2
            names = [client.read_flow_run(night).state_name for night in nights]
            assert names == ["Missed", "Missed", "Scheduled", "Scheduled"]
            assert client.read_flow_run(once).state_name == "Scheduled"
            assert client.read_flow_run(asked_for).state_name == "Scheduled"
            assert close_missed_runs() == 0
