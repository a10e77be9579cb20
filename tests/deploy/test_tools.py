"""Programs of others read our files: compose's parser, the compose schema, hadolint and dclint. Each is seen to complain."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import compose_file
from tests.deploy.policy import findings
from tests.deploy.test_policy import DRAIN
from tests.deploy.tools import tool

TASTES = (
    "service-keys-order",
    "services-alphabetical-order",
    "top-level-properties-order",
    "require-quotes-in-ports",
)


def run(program: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [str(tool(program)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what compose reads, with secrets."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    for name in ("docker-compose.yml", "Dockerfile"):
        (directory / name).write_text((compose_file.ROOT / name).read_text("utf-8"), "utf-8")
    (directory / "deploy").symlink_to(compose_file.ROOT / "deploy")
    return directory


def plant(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")


class TestCompose:
    def compose(self, directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(directory), "PATH": "/usr/bin:/bin", **variables}
        return run("docker-compose", *arguments, cwd=directory, env=environment)

    def test_it_takes_the_file(self, checkout: Path) -> None:
        done = self.compose(checkout, "--profile", "*", "config", "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    @pytest.mark.parametrize(
        ("arguments", "services"),
        [
            ((), {"headwater", "redis"}),
            (("--profile", "monitoring"), {"headwater", "redis", "prometheus", "grafana"}),
        ],
    )
    def test_what_is_started(self, checkout: Path, arguments: tuple[str, ...], services: set[str]) -> None:
        done = self.compose(checkout, *arguments, "config", "--services")
        assert set(done.stdout.split()) == services

    @pytest.mark.parametrize(
        ("named", "services"),
        [
            (("headwater-gpu",), {"headwater-gpu", "redis"}),
            (("headwater-gpu", "grafana"), {"headwater-gpu", "redis", "prometheus", "grafana"}),
        ],
    )
    def test_who_is_named_comes_with_whom_it_needs(
        self, checkout: Path, named: tuple[str, ...], services: set[str]
    ) -> None:
        done = self.compose(checkout, "config", "--format", "json", *named)
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)["services"]) == services

    def test_it_reads_the_file_as_our_own_reader_does(self, checkout: Path) -> None:
        done = self.compose(checkout, "--profile", "*", "config", "--format", "json")
        theirs, ours = json.loads(done.stdout)["services"], compose_file.read()["services"]
        assert theirs.keys() == ours.keys()
        for name, service in ours.items():
            told = theirs[name]
            for key in ("read_only", "cap_drop", "security_opt", "user", "init", "tmpfs", "environment"):
                assert told.get(key) == service.get(key), (name, key)
            assert [f"{p['host_ip']}:{p['published']}:{p['target']}" for p in told.get("ports", [])] == (
                service.get("ports", [])
            )

    @pytest.mark.parametrize(("model", "command"), [("", ["serve"]), ("org/name", ["serve", "org/name"])])
    def test_the_model_is_a_word_or_none(self, checkout: Path, model: str, command: list[str]) -> None:
        done = self.compose(checkout, "config", "--format", "json", HEADWATER_MODEL=model)
        assert json.loads(done.stdout)["services"]["headwater"]["command"] == command

    def test_what_is_set_where_it_is_started_gets_in(self, checkout: Path) -> None:
        given = {"HEADWATER_PUBLISH_ADDRESS": "0.0.0.0", "HEADWATER_PUBLISH_PORT": "9000"}
        done = self.compose(checkout, "config", "--format", "json", **given)
        (port,) = json.loads(done.stdout)["services"]["headwater"]["ports"]
        assert (port["host_ip"], port["published"], port["target"]) == ("0.0.0.0", "9000", 8000)
        assert findings(compose_file.read(given), drain=DRAIN) == [
            f"{name}: port 0.0.0.0:9000:8000 is published beyond this machine"
            for name in ("headwater", "headwater-gpu")
        ]

    @pytest.mark.parametrize(
        ("old", "new", "complaint"),
        [
            ("networks: [state]", "networks: [stat]", "undefined network stat"),
            ("secrets: [redis_password]", "secrets: [other]", "undefined secret other"),
            ("<<: *hardened", "<<: *hardend", "unknown anchor"),
            ("restart: unless-stopped", "restart: unless-stopped\n  pids_limit: 9", "distinct values"),
            ("redis: {condition: service_healthy}", "rediss: {condition: service_healthy}", "rediss"),
            ("${HEADWATER_DISK_CACHE:-8GiB}", "${HEADWATER_DISK_CACHE:?}", "HEADWATER_DISK_CACHE"),
        ],
    )
    def test_it_finds_what_is_planted(self, checkout: Path, old: str, new: str, complaint: str) -> None:
        plant(checkout / "docker-compose.yml", old, new)
        done = self.compose(checkout, "--profile", "*", "config", "--quiet")
        assert done.returncode != 0
        assert complaint in done.stderr


class TestSchema:
    """The planted mistakes are all in one file: each start of the program takes its time."""

    PLANTED = (
        ("\nnetworks:\n", "\nnetwork:\n", "'network' does not match"),
        ("retries: 5", "retrys: 5", "'retrys' does not match"),
        ("pids: 64", "pid: 64", "'pid' does not match"),
        ("read_only: true", "read_only: [1]", "[1] is not of type 'boolean'"),
    )

    def check(self, file: Path) -> subprocess.CompletedProcess[str]:
        flags = ("--builtin-schema", "vendor.compose-spec", "--verbose")
        return run("check-jsonschema", *flags, str(file))

    def test_it_holds(self, checkout: Path) -> None:
        done = self.check(checkout / "docker-compose.yml")
        assert done.returncode == 0, done.stdout

    def test_it_finds_what_is_planted(self, checkout: Path) -> None:
        for old, new, _ in self.PLANTED:
            plant(checkout / "docker-compose.yml", old, new)
        done = self.check(checkout / "docker-compose.yml")
        assert done.returncode == 1
        assert [words for *_, words in self.PLANTED if words not in done.stdout] == []


class TestHadolint:
    PLANTED = (
        ("# hadolint ignore=DL3008\n", "", "DL3008"),
        ('ENTRYPOINT ["headwater"]', "ENTRYPOINT headwater", "DL3025"),
        ("COPY gateway/ gateway/", "ADD gateway/ gateway/", "DL3020"),
        ("WORKDIR /var/lib/headwater", "WORKDIR data", "DL3000"),
        ("USER 10001:10001", "USER root", "DL3002"),
        ("EXPOSE 8000", "EXPOSE 80000", "DL3011"),
    )

    def test_it_has_nothing_to_say(self, checkout: Path) -> None:
        done = run("hadolint", str(checkout / "Dockerfile"))
        assert (done.returncode, done.stdout) == (0, "")

    def test_it_finds_what_is_planted(self, checkout: Path) -> None:
        for old, new, _ in self.PLANTED:
            plant(checkout / "Dockerfile", old, new)
        done = run("hadolint", str(checkout / "Dockerfile"))
        assert done.returncode == 1
        assert [rule for *_, rule in self.PLANTED if rule not in done.stdout] == []


class TestDclint:
    """It knows no variables, so it reads the file with their defaults. What is off are tastes about order."""

    PLANTED = (
        ("name: headwater\n", 'version: "3"\nname: headwater\n', "no-version-field"),
        ('"127.0.0.1:3000:3000"', '"3000:3000"', "no-unbound-port-interfaces"),
        ("image: grafana/grafana:13.2.3@", "image: grafana/grafana #", "service-image-require-explicit-tag"),
        ("image: prom/", "build: .\n    image: prom/", "no-build-and-image"),
    )

    def lint(self, directory: Path, text: str) -> subprocess.CompletedProcess[str]:
        rules = {"rules": dict.fromkeys(TASTES, 0)}
        (directory / ".dclintrc").write_text(json.dumps(rules), "utf-8")
        (directory / "docker-compose.yml").write_text(text, "utf-8")
        return run("dclint", "docker-compose.yml", cwd=directory)

    def test_it_has_nothing_to_say(self, tmp_path: Path) -> None:
        done = self.lint(tmp_path, compose_file.text())
        assert done.returncode == 0, done.stdout
        assert "warning" not in done.stdout, done.stdout

    def test_it_finds_what_is_planted(self, tmp_path: Path) -> None:
        text = compose_file.text()
        for old, new, _ in self.PLANTED:
            assert old in text
            text = text.replace(old, new, 1)
        done = self.lint(tmp_path, text)
        assert done.returncode == 1
        assert [rule for *_, rule in self.PLANTED if rule not in done.stdout] == []
