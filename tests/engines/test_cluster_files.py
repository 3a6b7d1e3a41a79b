"""The files of examples/cluster: they are what a cluster reads, and their commands are ones that Windlass takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from windlass.cli import main

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


COMPOSE = documents("compose.yaml")[0]
DEPLOYMENT, BUDGET = documents("kubernetes.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a command line, as the command would get them. An unknown option is an error."""
    name, command, rest = main.resolve_command(main.make_context("windlass", [], resilient_parsing=True), words)
    assert command is not None
    given: dict[str, Any] = command.make_context(name, list(rest)).params
    return given


@pytest.mark.parametrize("service", ["worker", "client"])
def test_the_commands_in_the_compose_file_are_ones_that_windlass_takes(service: str):
    found = parsed(COMPOSE["services"][service]["command"])
    host, _, port = found["temporal"].partition(":")
    assert (host in COMPOSE["services"], port) == (True, "7233")
    assert (FOLDER / f"{found['agent'].partition(':')[0]}.py").exists()


def test_the_services_of_the_compose_file_name_each_other():
    services, volumes = COMPOSE["services"], COMPOSE["volumes"]
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services
            assert how["condition"] != "service_healthy" or "healthcheck" in services[needed]
        for volume in service.get("volumes", []):
            assert volume.partition(":")[0] in volumes
    address = services["worker"]["environment"]["WINDLASS_STORE"]
    assert re.fullmatch(r"postgresql://app:\$\{POSTGRES_PASSWORD\}@(\w+)/app", address)[1] in services  # type: ignore[index]


def test_the_command_in_the_manifest_is_one_that_windlass_takes():
    [container] = POD["containers"]
    assert parsed(container["args"])["temporal"].endswith(":7233")
    assert [entry["name"] for entry in container["env"]] == ["WINDLASS_STORE"]


def test_turns_are_handed_over_before_the_cluster_kills_a_worker():
    drain = parsed(POD["containers"][0]["args"])["drain"]
    assert drain < POD["terminationGracePeriodSeconds"]
    worker = COMPOSE["services"]["worker"]
    assert parsed(worker["command"])["drain"] < int(worker["stop_grace_period"].rstrip("s"))


def test_the_selectors_of_the_manifest_find_the_workers():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    for selector in (DEPLOYMENT["spec"]["selector"], BUDGET["spec"]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert BUDGET["spec"]["minAvailable"] < DEPLOYMENT["spec"]["replicas"]


def test_no_password_is_written_down():
    for name in ("compose.yaml", "kubernetes.yaml", "Dockerfile"):
        for _, password in re.findall(r"postgresql://([^:\s]+):([^@\s]+)@", (FOLDER / name).read_text()):
            assert password in ("${POSTGRES_PASSWORD}", "…")
