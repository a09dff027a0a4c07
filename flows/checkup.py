"""What `rulka doctor` asks of Prefect: who answers at its address, and whether its deployments are of this tree."""

from __future__ import annotations

from pathlib import Path

import yaml
from prefect import __version__ as installed
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import WorkerStatus
from prefect.client.schemas.responses import DeploymentResponse

from flows.access import client_settings
from flows.server import WORK_POOL, Occupant, address, is_elsewhere, occupant, server_and_secret
from rulka.disk import unwritable_paths
from rulka.doctor.finding import Finding, State
from rulka.ports import holder

DEPLOYMENTS_FILE = Path("prefect.yaml")
_UP_AGAIN = "`rulka down`, then `rulka up` in this folder"


def server() -> list[Finding]:
    """Looks at the server of PREFECT_API_URL and, where it is ours, at its version, worker and deployments.

    Raises:
        UserError: if the address or the password cannot be used.
    """
    if unwritable_paths():
        return [Finding("server", State.UNKNOWN, "not looked at: its password lies in .prefect, see `folder`")]
    url, secret = server_and_secret()
    found = occupant(url, secret)
    if found is Occupant.NOBODY and not is_elsewhere(url):
        return [Finding("server", State.OK, f"{url}: free for `rulka up`")]
    if found is not Occupant.OUR_SERVER:
        return [_taken(url, found)]
    with client_settings(secret, url), get_client(sync_client=True) as client:
        return [_version(url, client.api_version()), _worker(client), _deployments(client)]


def _taken(url: str, found: Occupant) -> Finding:
    if is_elsewhere(url):
        hint = "start it there; or unset PREFECT_API_URL to work with a server of this machine"
        return Finding("server", State.WRONG, f"{url}: {found} answers", hint)
    who = holder(*address(url))
    text = f"{url} is taken by {found}" + (f", {who}" if who else "")
    hint = "end it, or choose another port with PREFECT_API_URL=http://127.0.0.1:PORT/api in .env"
    return Finding("server", State.WRONG, text, hint)


def _version(url: str, running: str) -> Finding:
    if running == installed:
        return Finding("server", State.OK, f"{url}: runs, Prefect {running}")
    text = f"{url}: runs with Prefect {running}, and {installed} is installed"
    return Finding("server", State.WRONG, text, _UP_AGAIN)


def _worker(client: SyncPrefectClient) -> Finding:
    pools = [pool.name for pool in client.read_work_pools()]
    workers = client.read_workers_for_work_pool(WORK_POOL) if WORK_POOL in pools else []
    online = [worker.name for worker in workers if worker.status is WorkerStatus.ONLINE]
    if len(online) == 1:
        return Finding("worker", State.OK, online[0])
    if online:
        text = f"{len(online)} work for the pool {WORK_POOL}: each takes the other's runs for abandoned"
        return Finding("worker", State.WRONG, text, f"end all but one of {', '.join(online)}")
    return Finding("worker", State.WRONG, "there is none: runs of deployments wait for it", "`rulka up` in this folder")


def _deployments(client: SyncPrefectClient) -> Finding:
    file = yaml.safe_load(DEPLOYMENTS_FILE.read_text(encoding="utf-8"))
    wanted = {each["name"]: each for each in file["deployments"]}
    there = {each.name: each for each in client.read_deployments()}
    if missing := sorted(wanted.keys() - there.keys()):
        text = f"{', '.join(missing)}: in {DEPLOYMENTS_FILE} and not on the server"
        return Finding("deployments", State.WRONG, text, _UP_AGAIN)
    elsewhere = {name: folder for name in wanted if (folder := _folder_of(there[name])) not in (None, Path.cwd())}
    if elsewhere:
        name, folder = min(elsewhere.items())
        more = f", nor do {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
        return Finding("deployments", State.WRONG, f"{name} works in {folder} and not here{more}", _UP_AGAIN)
    changed = [name for name, each in wanted.items() if each["entrypoint"] != there[name].entrypoint]
    if changed:
        return Finding("deployments", State.WRONG, f"{', '.join(changed)}: of another version", _UP_AGAIN)
    return Finding("deployments", State.OK, f"{len(wanted)}, all of this folder")


def _folder_of(deployment: DeploymentResponse) -> Path | None:
    """Returns where a deployment works; None where it does not say."""
    for step in deployment.pull_steps or ():
        for settings in step.values():
            if isinstance(settings, dict) and "directory" in settings:
                return Path(settings["directory"])
    return None
