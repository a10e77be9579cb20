"""Tenants and their keys at a real server: a tenant's own requests hit, and nothing it can ask tells it of another.

Each test is paired: what is hidden from the other tenant is there for the owner, so that none passes because nothing is
cached at all.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .server import Reply, Server, command, environment, wait_for
from .traffic import words

TENANTS = """
default: {pins: 5%}
tenants:
  acme: {quota: 60%, floor: 10%}
  apart: {prompt_cache_key: isolate, hard_pins: false}
"""
KEYS = {"alice": "acme", "bob": "acme", "eve": "rival", "ian": "apart"}
OPENING = 16


class Town:
    """A server and the keys of its tenants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "keys.json"
        self.keys = {name: self.command("create", name, "--tenant", tenant) for name, tenant in KEYS.items()}
        tenants = directory / "tenants.yaml"
        tenants.write_text(TENANTS)
        self.server = Server(
            directory,
            *("--key-store", str(self.store), "--tenants", str(tenants), "--admin-key", "sk-root"),
            *("--drain-delay", "0", "--ledger", str(directory / "ledger")),
            key="sk-root",
        )
        self._texts = random.Random(11)

    def command(self, what: str, *arguments: str) -> str:
        run = subprocess.run(
            command("keys", what, "--key-store", str(self.store), *arguments),
            capture_output=True,
            check=True,
            text=True,
            env=environment(),
        )
        return run.stdout.strip()

    def text(self) -> str:
        """One that nobody has asked about."""
        return words(self._texts, 300)

    def ask(self, who: str, text: str, **more: Any) -> Reply:
        body = {"model": "hash", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **more}
        reply = self.server.post("/v1/chat/completions", body, key=self.keys[who])
        assert reply.status == 200, reply
        return reply

    def hits(self, who: str, text: str, **more: Any) -> bool:
        """Whether this request finds what it has in common with another that was made of the same text."""
        reply = self.ask(who, text, **more)
        details = reply.json()["usage"]["prompt_tokens_details"]
        assert reply.headers["x-cache"].startswith(f"hit={details['cached_tokens']};"), "all say the same"
        return bool(details["cached_tokens"] > OPENING)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    started = Town(tmp_path_factory.mktemp("town"))
    yield started
    started.server.stop()


def test_keys_of_a_tenant_share_and_tenants_do_not(town: Town) -> None:
    text = town.text()
    assert not town.hits("alice", text)
    assert not town.hits("eve", text)
    assert town.hits("alice", text)
    assert town.hits("bob", text)
    assert town.hits("eve", text)


def test_a_salt_narrows_and_opens_nothing(town: Town) -> None:
    text = town.text()
    seen = [
        town.hits(who, text, **({} if salt is None else {"cache_salt": salt}))
        for who, salt in (
            ("alice", "s"),
            ("alice", None),
            ("alice", "t"),
            ("eve", "s"),
            ("eve", "acme"),
            ("bob", "s"),
        )
    ]
    assert seen == [False, False, False, False, False, True]


def test_a_key_groups_by_default_and_isolates_where_the_tenant_wants_that(town: Town) -> None:
    text = town.text()
    assert not town.hits("alice", text, prompt_cache_key="one")
    assert town.hits("alice", text, prompt_cache_key="two")
    assert not town.hits("ian", text, prompt_cache_key="one")
    assert town.hits("ian", text, prompt_cache_key="one")
    assert not town.hits("ian", text, prompt_cache_key="two")
    assert not town.hits("ian", text)


def test_a_tenant_may_not_do_what_its_policy_forbids(town: Town) -> None:
    asked = {"messages": [{"role": "user", "content": town.text()}], "model": "hash", "max_tokens": 1, "cache": {"pin": "hard", "ttl": "5m"}}  # fmt: skip
    assert town.server.post("/v1/chat/completions", asked, key=town.keys["alice"]).status == 200
    refused = town.server.post("/v1/chat/completions", asked, key=town.keys["ian"])
    assert refused.status in {400, 403, 409}
    assert refused.error["param"] == "cache.pin"


def test_why_a_prompt_missed_says_nothing_of_anothers_pages(town: Town) -> None:
    """Neither that they are there, nor that they were and went."""
    text = town.text()
    town.ask("alice", text)
    assert "reason=cold" in town.ask("eve", text).headers["x-cache"].replace("partial_hit", "cold")
    other = town.text()
    town.ask("alice", other)
    flushed = town.server.post("/v1/caches/flush", {"scope": {"tenant": "acme"}}, key=town.keys["alice"])
    assert flushed.status == 200
    assert sum(flushed.json()["pages"].values()) > 0
    assert not town.hits("alice", other)
    reason = town.ask("eve", other).headers["x-cache"].rpartition("reason=")[2]
    assert reason in {"cold", "partial_hit"}


def test_a_flush_is_its_own_tenants(town: Town) -> None:
    text = town.text()
    for who in ("alice", "eve"):
        town.ask(who, text)
    refused = town.server.post("/v1/caches/flush", {"scope": {"tenant": "rival"}}, key=town.keys["alice"])
    assert refused.status == 403
    assert town.hits("eve", text)
    town.server.post("/v1/caches/flush", {"scope": {"tenant": "acme"}}, key=town.keys["bob"])
    assert not town.hits("alice", text)
    assert town.hits("eve", text)


def test_a_look_up_is_the_callers_own(town: Town) -> None:
    text = town.text()
    town.ask("alice", text)
    body = {"model": "hash", "messages": [{"role": "user", "content": text}]}
    found = {
        who: town.server.post("/v1/caches/lookup", body, key=town.keys[who]).json() for who in ("bob", "eve")
    }
    assert found["bob"]["hit_tokens"] > OPENING
    assert found["eve"]["hit_tokens"] <= OPENING
    assert found["eve"]["evicted"] is None


def test_another_tenants_object_does_not_exist(town: Town) -> None:
    """Its id is answered like one that nobody ever had, whatever is asked for."""
    asked = {"model": "hash", "messages": [{"role": "system", "content": town.text()}], "ttl": "5m"}
    made = town.server.post("/v1/caches", asked, key=town.keys["alice"])
    assert made.status in {200, 201}, made
    real = made.json()["id"]
    never = real[:-4] + ("0000" if real[-4:] != "0000" else "1111")

    def asking(method: str, path: str, body: object, who: str) -> tuple[int, bytes]:
        reply = town.server.request(method, path, body, key=town.keys[who])
        return reply.status, reply.body

    for method, path, body in (
        ("GET", "/v1/caches/ID", None),
        ("PATCH", "/v1/caches/ID", {"ttl": "1h"}),
        ("DELETE", "/v1/caches/ID", None),
        ("POST", "/v1/caches/ID/warm", {}),
        ("POST", "/v1/caches/ID/demote", {}),
        ("POST", "/v1/caches/ID/promote", {}),
        ("POST", "/v1/caches/ID/export", {}),
        ("POST", "/v1/caches/flush", {"scope": {"cache_id": "ID"}}),
        ("POST", "/v1/chat/completions", {"model": "hash", "messages": [{"role": "user", "content": "a"}], "cache": {"id": "ID"}}),
    ):  # fmt: skip
        answers = []
        for name in (real, never):
            sent = json.loads(json.dumps(body).replace("ID", name))
            status, content = asking(method, path.replace("ID", name), sent, "eve")
            answers.append((status, content.replace(name.encode(), b"ID")))
        assert answers[0] == answers[1], (method, path)
        assert answers[0][0] in {404, 200}, (method, path, answers[0])
    assert town.server.get(f"/v1/caches/{real}", key=town.keys["bob"]).status == 200
    listed = town.server.get("/v1/caches", key=town.keys["eve"])
    assert real not in str(listed.body)


def test_another_tenants_response_cannot_be_explained(town: Town) -> None:
    """Nor be compared with: both are answered like a response that nobody ever had."""
    text = town.text()
    theirs = town.ask("alice", text).json()["id"]
    own = town.ask("eve", text).json()["id"]
    never = theirs[:-4] + ("0000" if theirs[-4:] != "0000" else "1111")

    def answer(who: str, query: str) -> tuple[int, bytes]:
        reply = town.server.get(f"/v1/caches/explain?{query}", key=town.keys[who])
        return reply.status, reply.body.replace(theirs.encode(), b"ID").replace(never.encode(), b"ID")

    for query in ("response_id={}", f"response_id={own}&baseline_id={{}}"):
        assert answer("eve", query.format(theirs)) == answer("eve", query.format(never)), query
    assert answer("bob", f"response_id={theirs}")[0] == 200
    status, said = answer("eve", f"response_id={own}")
    assert status == 200
    assert theirs.encode() not in said
    assert b"evicted" not in said


def test_statistics_and_metrics_name_nobody_else(town: Town) -> None:
    label = f"label-{random.Random(5).random()}"
    town.ask("alice", town.text(), prompt_cache_key=label)
    own = town.server.get("/v1/caches/stats", key=town.keys["bob"]).json()["tenants"]
    assert [each["tenant"] for each in own] == ["acme"]
    assert label in {key["name"] for key in own[0]["usage"]["keys"]}
    seen_by_eve = [
        town.server.get("/v1/caches/stats", key=town.keys["eve"]).body,
        town.server.get("/metrics", key=town.keys["eve"]).body,
        town.server.get("/v1/caches/stats?tenant=acme", key=town.keys["eve"]).body,
        town.server.get("/v1/caches/stats?all=true", key=town.keys["eve"]).body,
    ]
    assert b'tenant":"rival"' in seen_by_eve[0].replace(b" ", b"")
    for said in seen_by_eve:
        for secret in ("acme", "apart", label, *(town.keys[who][-8:] for who in KEYS)):
            assert secret.encode() not in said
    names = [
        town.server.get(f"/v1/caches/stats?tenant={name}", key=town.keys["eve"]) for name in ("acme", "none")
    ]
    assert {reply.status for reply in names} == {403}
    assert names[0].body == names[1].body, "not even whether there is such a tenant"
    everything = town.server.get("/metrics", key="sk-root").body.decode()
    assert 'headwater_cache_tenant_requests_total{model_name="hash",tenant="acme"}' in everything
    everybody = town.server.get("/v1/caches/stats?all=true", key="sk-root").json()["tenants"]
    assert {"acme", "rival"} <= {each["tenant"] for each in everybody}


def test_a_revoked_key_is_refused_and_its_sister_is_not(town: Town) -> None:
    key = town.command("create", "carol", "--tenant", "acme")
    text = town.text()

    def status() -> int:
        return town.server.get("/v1/models", key=key).status

    wait_for(lambda: status() == 200, 2, "the new key to count")
    town.keys["carol"] = key
    assert not town.hits("carol", text)
    town.command("revoke", "carol")
    wait_for(lambda: status() == 401, 2, "the key to be refused")
    assert town.hits("alice", text), "what she left is her tenant's"


def test_the_ledger_knows_who_used_what(town: Town) -> None:
    reply = town.ask("bob", town.text())
    ledger = town.directory / "ledger"
    request_id = reply.headers["x-request-id"]
    line = wait_for(
        lambda: next((line for line in ledger.read_text().splitlines() if request_id in line), None),
        2,
        "a line",
    )
    assert '"tenant":"acme"' in line
    listed = town.command("list", "--json")
    assert line.split('"key":"')[1].split('"')[0] in listed
    for key in town.keys.values():
        assert key not in ledger.read_text()
        assert key not in town.server.log()
