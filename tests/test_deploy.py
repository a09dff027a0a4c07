"""Templates of deploy/: linted by the matching tools, and consistent with this version."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prefect import __version__ as prefect_version

from flows.up import WORKER
from rulka.cli import COMMANDS
from rulka.runtime.cluster import CLUSTER_VARIABLE

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SERVER_IMAGE = f"prefecthq/prefect:{prefect_version}-python3.11"


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def deployments() -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents() if "template" in each["spec"]
    }


def test_the_dockerfile_is_linted_and_what_it_does_exists() -> None:
    answer = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stdout) == (0, "")
    text = (DEPLOY / "Dockerfile").read_text()
    assert {"new", "up"} <= set(COMMANDS)
    assert f"exec prefect {' '.join(WORKER)}" in text
    assert "dist/constraints.txt dist/*.whl" in text
    assert "cp constraints.txt dist/" in (ROOT / "Makefile").read_text()


def test_the_cluster_would_take_it_and_names_agree() -> None:
    assert len(documents()) == 5
    for document in documents():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    claims = {each["metadata"]["name"] for each in documents() if each["kind"] == "PersistentVolumeClaim"}
    for pod in deployments().values():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == set(volumes)
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if len(v) and "persistentVolumeClaim" in v
        } <= claims
    (service,) = [each for each in documents() if each["kind"] == "Service"]
    (url,) = [
        variable["value"]
        for variable in deployments()["rulka-worker"]["containers"][0]["env"]
        if variable["name"] == "PREFECT_API_URL"
    ]
    assert url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/api"


def test_the_compose_file_is_whole_and_of_this_version() -> None:
    assert deployments()["rulka-server"]["containers"][0]["image"] == SERVER_IMAGE
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert compose["services"]["server"]["image"] == SERVER_IMAGE
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    used = {volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert used == set(compose["volumes"])
    assert (DEPLOY / compose["services"]["worker"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / compose["services"]["worker"]["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["server"]["ports"]), (
        "for this machine alone"
    )


def test_servers_in_containers_are_set_as_prefect_toml_sets_them() -> None:
    """Their image does not hold the file: without these a page of another site could drive the server."""
    server = tomllib.loads((ROOT / "prefect.toml").read_text())["server"]
    wanted = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": str(server["analytics_enabled"]).lower(),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": str(server["api"]["csrf_protection_enabled"]).lower(),
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": server["api"]["cors_allowed_origins"],
        "PREFECT_SERVER_DATABASE_TIMEOUT": str(server["database"]["timeout"]),
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": ",".join(server["services"]["db_vacuum"]["enabled"]),
    }
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["server"]["environment"]
    pod = deployments()["rulka-server"]["containers"][0]["env"]
    for environment in (compose, {each["name"]: each.get("value") for each in pod}):
        assert environment | wanted == environment
        assert "PREFECT_SERVER_API_AUTH_STRING" in environment


def test_rays_own_schema_takes_the_cluster_file() -> None:
    schema = json.loads(files("ray").joinpath("autoscaler/ray-schema.json").read_text())
    cluster = yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text())
    jsonschema.validate(cluster, schema)
    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        jsonschema.validate(cluster | {"max_worker": 1}, schema)
    assert len(cluster["provider"]["worker_ips"]) == cluster["max_workers"]


def test_kubernetes_would_take_the_pods_of_the_ray_cluster() -> None:
    """KubeRay's kind has no schema here: its pods are validated as Kubernetes pods, the rest by assertions."""
    claim, cluster = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    kubernetes_validate.validate(claim, kubernetes_validate.latest_version(), strict=True)
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    spec = cluster["spec"]
    assert set(spec) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert spec["rayVersion"] == version("ray")
    (workers,) = spec["workerGroupSpecs"]
    for group in (spec["headGroupSpec"], workers):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}} | group["template"]
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), (
            "the operator takes words only"
        )
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]} == volumes
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    variables = {each["name"] for each in spec["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]}
    assert CLUSTER_VARIABLE in variables
    assert "ARG EXTRAS" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here, which checks units")
def test_the_unit_is_linted(tmp_path: Path) -> None:
    """Uses this environment's paths instead of the user's, as the programs of a unit must exist."""
    text = (DEPLOY / "rulka.service").read_text()
    unit = text.replace("%h/rulka/.venv/bin", str(Path(sys.executable).parent)).replace("%h/rulka", str(ROOT))
    (tmp_path / "rulka.service").write_text(unit)
    answer = subprocess.run(
        ["systemd-analyze", "--user", "verify", tmp_path / "rulka.service"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "/rulka up\n" in text
