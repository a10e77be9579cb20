"""What the compose file and the image set is understood by the server, and fits together."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click
import pytest
from pydantic import ByteSize, TypeAdapter

from gateway.__main__ import SERVE_PARTS, cli
from gateway.options import ENVIRONMENT_PREFIX, read
from tests.deploy import compose_file

COMPOSE_ONLY = {
    "HEADWATER_CPUS",
    "HEADWATER_MEMORY",
    "HEADWATER_MODEL",
    "HEADWATER_PUBLISH_ADDRESS",
    "HEADWATER_PUBLISH_PORT",
    "HEADWATER_SECRETS",
    "GRAFANA_PUBLISH_ADDRESS",
    "GRAFANA_PUBLISH_PORT",
}
"""Variables of the compose file that are no options of the server."""
SERVERS = ("headwater", "headwater-gpu")
WRITABLE = ("/var/lib/headwater/models", "/var/lib/headwater/cache", "/var/lib/headwater/state")


def environment(service: str) -> dict[str, str]:
    return {**compose_file.image_environment(), **compose_file.read()["services"][service]["environment"]}


def known() -> set[str]:
    options = cli.commands["serve"].params
    return {str(option.envvar) for option in options if isinstance(option, click.Option)}


def unknown(settings: Mapping[str, str]) -> set[str]:
    return {name for name in settings if name.startswith(ENVIRONMENT_PREFIX)} - known()


@pytest.mark.parametrize("service", SERVERS)
def test_every_setting_is_an_option(service: str) -> None:
    assert unknown(environment(service)) == set()


def test_one_that_is_none_is_found() -> None:
    assert unknown({"HEADWATER_KV_BITES": "1", "HEADWATER_KV_BYTES": "1", "PATH": "x"}) == {
        "HEADWATER_KV_BITES"
    }


@pytest.mark.parametrize("service", SERVERS)
def test_every_value_is_one_that_the_option_takes(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(service).items():
        monkeypatch.setenv(name, value)
    with cli.commands["serve"].make_context("serve", []) as context:
        parts = {part.__name__: read(part, context.params) for part in SERVE_PARTS}
    assert str(parts["Http"].model_dump()["admin_key_file"]) == "/run/secrets/admin_key"


def test_every_variable_is_documented() -> None:
    """Those that are options are in the tables of options already; the section has all of them."""
    document = (compose_file.ROOT / "docs" / "operations.md").read_text("utf-8")
    section = document.partition("## With docker compose")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert listed == compose_file.variables()
    assert listed - known() == COMPOSE_ONLY


@pytest.mark.parametrize("service", SERVERS)
def test_the_server_writes_only_into_its_volumes(service: str) -> None:
    targets = {volume.split(":")[1] for volume in compose_file.read()["services"][service]["volumes"]}
    assert targets == set(WRITABLE)
    for name in (
        "HEADWATER_STORE",
        "HEADWATER_KEY_STORE",
        "HEADWATER_CACHE_DIR",
        "HEADWATER_LEDGER",
        "HF_HOME",
    ):
        assert environment(service)[name].startswith(WRITABLE), name


@pytest.mark.parametrize("service", SERVERS)
def test_every_secret_that_is_named_is_there(service: str) -> None:
    given = {f"/run/secrets/{name}" for name in compose_file.read()["services"][service]["secrets"]}
    named = {value for value in environment(service).values() if str(value).startswith("/run/secrets/")}
    assert named == given


@pytest.mark.parametrize("service", SERVERS)
def test_what_is_imported_fits_into_the_temporary_directory(service: str) -> None:
    (mount,) = compose_file.read()["services"][service]["tmpfs"]
    size = TypeAdapter(ByteSize).validate_python(re.findall(r"size=(\d+m)", mount)[0].replace("m", "MiB"))
    assert TypeAdapter(ByteSize).validate_python(environment(service)["HEADWATER_MAX_IMPORT"]) < size


@pytest.mark.parametrize("service", SERVERS)
def test_the_pages_fit_into_the_memory(service: str) -> None:
    """With as much again for weights and everything else."""
    limits = compose_file.read()["services"][service]["deploy"]["resources"]["limits"]
    memory = TypeAdapter(ByteSize).validate_python(limits["memory"].replace("g", "GiB"))
    assert 2 * TypeAdapter(ByteSize).validate_python(environment(service)["HEADWATER_KV_BYTES"]) <= memory
