"""The compose file and the Dockerfile keep to the policy, and the policy finds what is planted."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from gateway.config import Http
from tests.deploy import compose_file
from tests.deploy.policy import findings, image_findings

DRAIN = Http().drain_delay + Http().drain_timeout
DIGEST = "@sha256:" + "0" * 64
GONE = object()


def test_our_compose_file() -> None:
    assert findings(compose_file.read(), drain=DRAIN) == []


SERVER = "services.headwater."
REDIS = "services.redis."
PLANTED: list[tuple[str, Any, str]] = [
    (SERVER + "read_only", GONE, "headwater: its root can be written to"),
    (REDIS + "read_only", False, "redis: its root can be written to"),
    (SERVER + "cap_drop", ["NET_RAW"], "headwater: it keeps capabilities"),
    (SERVER + "cap_add", ["SYS_ADMIN"], "headwater: it keeps capabilities"),
    (SERVER + "security_opt", GONE, "headwater: it may gain privileges"),
    (
        SERVER + "security_opt",
        ["no-new-privileges:true", "seccomp:unconfined"],
        "headwater: a confinement is switched off",
    ),
    (REDIS + "user", GONE, "redis: it names no user and group by number, or root"),
    (SERVER + "user", "0:0", "headwater: it names no user and group by number, or root"),
    (SERVER + "user", "10001", "headwater: it names no user and group by number, or root"),
    (SERVER + "user", "root", "headwater: it names no user and group by number, or root"),
    (SERVER + "privileged", True, "headwater: it is privileged"),
    (SERVER + "network_mode", "host", "headwater: it shares a part of the host"),
    (SERVER + "pid", "host", "headwater: it shares a part of the host"),
    (SERVER + "devices", ["/dev/kmsg"], "headwater: it shares a part of the host"),
    (SERVER + "deploy.resources.limits.memory", GONE, "headwater: it has no limit of memory"),
    (REDIS + "deploy.resources.limits.pids", GONE, "redis: it has no limit of pids"),
    ("services.grafana.deploy", GONE, "grafana: it has no limit of cpus"),
    (SERVER + "pids_limit", 10, "headwater: compose refuses pids_limit beside limits of resources"),
    (REDIS + "healthcheck", GONE, "redis: it has no health check"),
    (SERVER + "healthcheck", {"disable": True}, "headwater: it has no health check"),
    (SERVER + "restart", GONE, "headwater: it is not started again"),
    (SERVER + "init", GONE, "headwater: nobody reaps its orphans"),
    (SERVER + "logging", GONE, "headwater: its log grows without bound"),
    (
        "services.grafana.image",
        "grafana/grafana",
        "grafana: its image is not pinned by version and digest",
    ),
    (REDIS + "image", "redis:8.6.7-alpine", "redis: its image is not pinned by version and digest"),
    (REDIS + "image", "redis:latest" + DIGEST, "redis: its image is not pinned by version and digest"),
    (REDIS + "image", "redis" + DIGEST, "redis: its image is not pinned by version and digest"),
    (SERVER + "ports", ["8000:8000"], "headwater: port 8000:8000 is published beyond this machine"),
    (SERVER + "ports", ["8000"], "headwater: port 8000 is published beyond this machine"),
    (
        SERVER + "ports",
        ["0.0.0.0:8000:8000"],
        "headwater: port 0.0.0.0:8000:8000 is published beyond this machine",
    ),
    (REDIS + "ports", ["127.0.0.1:6379:6379"], "redis: it is published"),
    (REDIS + "networks", ["outside"], "redis: it is in a network that leads out"),
    (REDIS + "networks", GONE, "redis: it is in the network of everybody"),
    ("networks.state", {}, "redis: it is in a network that leads out"),
    (REDIS + "secrets", [], "redis: it has no password"),
    (REDIS + "command", "redis-server --requirepass x", "redis: a password is among its arguments"),
    (SERVER + "environment.HEADWATER_ADMIN_KEY", "k", "headwater: HEADWATER_ADMIN_KEY is a secret in the environment"),
    (SERVER + "environment.HEADWATER_API_KEYS", "k", "headwater: HEADWATER_API_KEYS is a secret in the environment"),
    (SERVER + "environment.HF_TOKEN", "t", "headwater: HF_TOKEN is a secret in the environment"),
    (SERVER + "environment.HEADWATER_REDIS", "redis://:pw@redis", "headwater: HEADWATER_REDIS holds a password"),
    ("secrets.admin_key", {"environment": "ADMIN_KEY"}, "secrets: admin_key is not a file"),
    (SERVER + "secrets", ["other"], "headwater: other is not among the secrets"),
    (SERVER + "volumes", ["other:/x"], "headwater: other is not among the volumes"),
    (SERVER + "volumes", ["/:/host"], "headwater: / of the host is mounted"),
    (SERVER + "volumes", ["./deploy/x:/x"], "headwater: ./deploy/x of the host is mounted"),
    (
        SERVER + "volumes",
        ["/var/run/docker.sock:/var/run/docker.sock"],
        "headwater: it can command the container engine",
    ),
    (SERVER + "tmpfs", [], "headwater: it has no /tmp"),
    (
        SERVER + "tmpfs",
        ["/tmp:size=1g,noexec"],
        "headwater: /tmp:size=1g,noexec is unbounded, or programs can be started from it",
    ),
    (SERVER + "depends_on", {"nobody": {}}, "headwater: it waits for nobody, which is no service"),
    (SERVER + "depends_on.redis", {"condition": "service_started"}, "headwater: it does not wait until redis is healthy"),
    (SERVER + "stop_grace_period", GONE, "headwater: is killed before it has drained"),
    (SERVER + "stop_grace_period", "30s", "headwater: is killed before it has drained"),
    ("volumes.unused", {}, "volumes: unused is of no use"),
    ("services.redis", GONE, "redis: there is none"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "finding"), PLANTED)
def test_what_is_planted_is_found(place: str, value: object, finding: str) -> None:
    file = copy.deepcopy(compose_file.read())
    *path, last = place.split(".")
    target = file
    for step in path:
        target = target[step]
    if value is GONE:
        del target[last]
    else:
        target[last] = value
    assert finding in findings(file, drain=DRAIN)


def test_our_dockerfile() -> None:
    assert image_findings(compose_file.DOCKERFILE.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("USER 10001:10001", "", "the image runs as root, or as a user without a number"),
        ("USER 10001:10001", "USER headwater", "the image runs as root, or as a user without a number"),
        ("WORKDIR /var", "USER 0:0\nWORKDIR /var", "the image runs as root, or as a user without a number"),
        (
            r"python:3\S+@sha256:\S+",
            "python:3.11-slim",
            "python:3.11-slim is not pinned by version and digest",
        ),
        (r"HEALTHCHECK .*\n.*", "", "the image has no HEALTHCHECK without a shell"),
        (r"ENTRYPOINT .*", "ENTRYPOINT headwater", "the image has no ENTRYPOINT without a shell"),
        ("COPY gateway/ gateway/", "COPY . .", "everything is copied"),
        ("COPY gateway/", "ADD gateway/", "ADD fetches and unpacks"),
        ("ARG FLAVOUR=cpu", "ARG API_KEY=x", "a secret is in the image"),
        ("HF_HOME=", "HF_TOKEN=x HF_HOME=", "a secret is in the image"),
        (
            r"--require-hashes --only-binary :all: \\\n        --requirement /build/requirements/base",
            r"--requirement /build/requirements/base",
            "packages are installed without their digests",
        ),
        (
            "--require-hashes",
            "--require-hashes --extra-index-url x",
            "packages come from whichever index has the higher version",
        ),
    ],
)
def test_what_is_planted_in_the_image_is_found(old: str, new: str, finding: str) -> None:
    text = compose_file.DOCKERFILE.read_text("utf-8")
    planted = re.sub(old, new.replace("\\", r"\\"), text, count=1)
    assert planted != text
    assert finding in image_findings(planted)


def test_only_what_the_image_is_made_of_is_sent_to_the_builder() -> None:
    """`.dockerignore` shuts everything out, lets in what is copied, and nothing else."""
    lines = (compose_file.ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    copied: set[str] = set()
    for words in re.findall(
        r"^COPY (?!--from)(.*)$", compose_file.DOCKERFILE.read_text("utf-8"), re.MULTILINE
    ):
        copied |= {word.rstrip("/") for word in words.split()[:-1]}
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert all((compose_file.ROOT / path).exists() for path in copied)
