"""What every service of a compose file and every image of ours has to keep to, as findings: none is good."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Service = Mapping[str, Any]

PINNED = re.compile(r"[a-z0-9./-]+:(?!latest)[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")
LOOPBACK = frozenset({"127.0.0.1", "[::1]"})
SECRET_NAME = re.compile(r"(KEY|KEYS|PASSWORD|TOKEN|SECRET)$")
URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")
HOST_SPACES = ("network_mode", "ipc", "pid", "userns_mode", "uts", "cgroup")
STOP_MARGIN = 15.0
"""Seconds beyond drain delay and timeout that a server with a cache directory needs to end (docs/operations.md)."""


def findings(file: Mapping[str, Any], *, drain: float) -> list[str]:
    """`service: what is wrong`. `drain`: seconds that a server of ours may take to finish what runs."""
    found = [
        f"{name}: {finding}"
        for name, service in file["services"].items()
        for rule in (_confined, _bounded, _watched, _quiet, _sealed, _mounts, _discreet)
        for finding in rule(service)
    ]
    found += [f"{name}: {finding}" for name, finding in _whole(file)]
    found += [f"redis: {finding}" for finding in _private(file, "redis")]
    for name, service in file["services"].items():
        if "build" in service and _seconds(service.get("stop_grace_period", "10s")) < drain + STOP_MARGIN:
            found.append(f"{name}: is killed before it has drained")
        if "build" in service and service.get("healthcheck"):
            found.append(f"{name}: has a health check besides the image's own")
    return found


def _confined(service: Service) -> Iterator[str]:
    if service.get("read_only") is not True:
        yield "its root can be written to"
    if service.get("cap_drop") != ["ALL"] or service.get("cap_add"):
        yield "it keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "it may gain privileges"
    if any("unconfined" in option for option in service.get("security_opt", [])):
        yield "a confinement is switched off"
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", str(service.get("user", ""))):
        yield "it names no user and group by number, or root"
    if service.get("privileged"):
        yield "it is privileged"
    if any(service.get(space) == "host" for space in HOST_SPACES) or service.get("devices"):
        yield "it shares a part of the host"


def _bounded(service: Service) -> Iterator[str]:
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    for what in ("cpus", "memory", "pids"):
        if not limits.get(what):
            yield f"it has no limit of {what}"
    if service.get("pids_limit"):
        yield "compose refuses pids_limit beside limits of resources"


def _watched(service: Service) -> Iterator[str]:
    check = service.get("healthcheck", {})
    if check.get("disable") or ("build" not in service and not check.get("test")):
        yield "it has no health check"
    if service.get("restart") not in ("unless-stopped", "always"):
        yield "it is not started again"
    if service.get("init") is not True:
        yield "nobody reaps its orphans"


def _quiet(service: Service) -> Iterator[str]:
    options = service.get("logging", {}).get("options", {})
    if not {"max-size", "max-file"} <= options.keys():
        yield "its log grows without bound"


def _sealed(service: Service) -> Iterator[str]:
    """Where it comes from, and who can reach it."""
    if "build" not in service and not PINNED.fullmatch(service.get("image", "")):
        yield "its image is not pinned by version and digest"
    for port in service.get("ports", []):
        address, _, rest = str(port).rpartition(":")[0].rpartition(":")
        if address not in LOOPBACK or not rest:
            yield f"port {port} is published beyond this machine"


def _mounts(service: Service) -> Iterator[str]:
    for volume in service.get("volumes", []):
        source, _, rest = str(volume).partition(":")
        if "docker.sock" in source:
            yield "it can command the container engine"
        elif source.startswith((".", "/", "~")) and not (
            source.startswith("./deploy/") and rest.endswith(":ro")
        ):
            yield f"{source} of the host is mounted"
    for mount in service.get("tmpfs", []):
        options = set(str(mount).partition(":")[2].split(","))
        if not {"noexec", "nosuid", "nodev"} <= options or not any(o.startswith("size=") for o in options):
            yield f"{mount} is unbounded, or programs can be started from it"
    if not any(str(mount).startswith("/tmp:") for mount in service.get("tmpfs", [])):
        yield "it has no /tmp"


def _discreet(service: Service) -> Iterator[str]:
    for name, value in (service.get("environment") or {}).items():
        if SECRET_NAME.search(name) and value:
            yield f"{name} is a secret in the environment"
        if URL_WITH_PASSWORD.search(str(value)):
            yield f"{name} holds a password"
    if any(word.startswith(("--requirepass", "--password")) for word in str(service.get("command")).split()):
        yield "a password is among its arguments"


def _whole(file: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """References lead somewhere, secrets are files, and what is declared is used."""
    used: dict[str, set[str]] = {kind: set() for kind in ("networks", "volumes", "configs", "secrets")}
    for name, service in file["services"].items():
        named = {
            "networks": list(service.get("networks", {})),
            "volumes": [
                source
                for volume in service.get("volumes", [])
                if re.match(r"\w", source := str(volume).partition(":")[0])
            ],
            "configs": [config["source"] for config in service.get("configs", [])],
            "secrets": list(service.get("secrets", [])),
        }
        for kind, names in named.items():
            used[kind] |= set(names)
            for missing in sorted(set(names) - set(file.get(kind, {}))):
                yield name, f"{missing} is not among the {kind}"
        if not service.get("networks"):
            yield name, "it is in the network of everybody"
        for other, wish in service.get("depends_on", {}).items():
            if other not in file["services"]:
                yield name, f"it waits for {other}, which is no service"
            elif wish != {"condition": "service_healthy"}:
                yield name, f"it does not wait until {other} is healthy"
    for kind, names in used.items():
        for idle in sorted(set(file.get(kind, {})) - names):
            yield kind, f"{idle} is of no use"
    for name, secret in file.get("secrets", {}).items():
        if set(secret) != {"file"}:
            yield "secrets", f"{name} is not a file"


def _private(file: Mapping[str, Any], name: str) -> Iterator[str]:
    """A service that only its neighbours reach."""
    service = file["services"].get(name)
    if service is None:
        yield "there is none"
        return
    if service.get("ports"):
        yield "it is published"
    if any(not file["networks"].get(network, {}).get("internal") for network in service.get("networks", [])):
        yield "it is in a network that leads out"
    if not service.get("secrets"):
        yield "it has no password"


def _seconds(period: str) -> float:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", period)
    return 0.0 if found is None else 60 * int(found[1] or 0) + int(found[2] or 0)


# -- the image ---------------------------------------------------------------------------------------------------------


def image_findings(dockerfile: str) -> list[str]:
    """What is wrong with a Dockerfile: what hadolint does not say."""
    joined = re.sub(r"\\\n(\s*#.*\n)*", " ", dockerfile)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    stages: list[list[str]] = []
    for line in lines:
        if line.startswith("FROM "):
            stages.append([])
        if stages:
            stages[-1].append(line)
    return [*_sources(stages), *_steps(lines), *_last(stages[-1])]


def _sources(stages: list[list[str]]) -> Iterator[str]:
    own = {stage[0].split()[3] for stage in stages if " AS " in stage[0]}
    for stage in stages:
        image = stage[0].split()[1]
        if image not in own and not PINNED.fullmatch(image):
            yield f"{image} is not pinned by version and digest"


def _steps(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("ADD "):
            yield "ADD fetches and unpacks"
        if re.match(r"COPY (--\S+ )*\.{1,2}/? ", line):
            yield "everything is copied"
        if line.startswith(("ENV ", "ARG ")) and any(
            SECRET_NAME.search(word.partition("=")[0]) for word in line.split()[1:]
        ):
            yield "a secret is in the image"
        for command in re.findall(r"pip install[^&|;]*", line):
            if "--no-index" not in command and "--require-hashes" not in command:
                yield "packages are installed without their digests"
            if "--extra-index-url" in command:
                yield "packages come from whichever index has the higher version"


def _last(stage: list[str]) -> Iterator[str]:
    users = [line.split()[1] for line in stage if line.startswith("USER ")]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "the image runs as root, or as a user without a number"
    for word in ("ENTRYPOINT", "HEALTHCHECK"):
        instructions = [line for line in stage if line.startswith(word)]
        if not any("[" in line and "]" in line for line in instructions):
            yield f"the image has no {word} without a shell"
