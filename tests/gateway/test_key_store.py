"""Keys are made, listed and revoked in a file that no two writers spoil; a running server follows it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from engine.errors import StartError
from gateway import key_store, key_watch
from gateway.__main__ import cli
from gateway.auth import Access, Keyring
from gateway.config import Http
from gateway.errors import ApiError
from gateway.key_store import KeyStore, KeyStoreError, key_digest
from gateway.key_watch import KeyWatch
from gateway.serve import with_key_store
from gateway.server import check_exposed
from tests.fakes import ManualClock
from tests.gateway.live import Start


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys.json", clock=ManualClock(1000.0))


def test_a_key_is_kept_as_a_digest_only(keys: KeyStore) -> None:
    new = keys.create("ci", "acme")
    assert len(new.key) == len("hw-") + 43
    content = keys.path.read_text()
    assert new.key not in content
    assert new.key[3:-4] not in content
    assert new.stored.last == new.key[-4:]
    assert new.stored.digest == key_digest(new.key).hex()
    assert keys.path.stat().st_mode & 0o777 == 0o600
    assert keys.read() == (new.stored,)


def test_keys_differ(keys: KeyStore) -> None:
    made = [keys.create(f"k{i}", "t") for i in range(5)]
    assert len({new.key for new in made}) == len({new.stored.id for new in made}) == 5


def test_a_life_of_a_key(keys: KeyStore) -> None:
    clock = keys._clock
    assert isinstance(clock, ManualClock)
    key = keys.create("ci", "acme", lifetime=60).stored
    assert (key.created, key.expires, key.status(1059)) == (1000, 1060, "active")
    assert key.status(1060) == "expired"
    clock.now = 1030
    revoked = keys.revoke(key.id)
    assert (revoked.revoked, revoked.status(1031)) == (1030, "revoked")
    clock.now = 1040
    assert keys.revoke("ci") == revoked, "a second time changes nothing"
    again = keys.create("ci", "acme").stored
    assert keys.revoke("ci").id == again.id, "the active one of this name"


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda keys: keys.create("ci", "acme"), "there is an active key called 'ci'"),
        (lambda keys: keys.create("a b", "acme"), "'a b' cannot be a name"),
        (lambda keys: keys.create("x", "../acme"), "'../acme' cannot be a tenant"),
        (lambda keys: keys.create("x", "admin"), "the tenant 'admin' is the server's own"),
        (lambda keys: keys.create("x", "local"), "the tenant 'local' is the server's own"),
        (lambda keys: keys.create("x", "acme", lifetime=1e13), "a hundred years at most"),
        (lambda keys: keys.revoke("nobody"), "no key with the id or name 'nobody'"),
    ],
)
def test_what_cannot_be_done_is_said(
    keys: KeyStore, act: Callable[[KeyStore], object], complaint: str
) -> None:
    keys.create("ci", "acme")
    before = keys.path.read_bytes()
    with pytest.raises(KeyStoreError, match=complaint):
        act(keys)
    assert keys.path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"version": 2, "keys": []}', '{"version": 1, "keys": [{"id": "x"}]}', '{"keys": [], "more": 1}',
     '{"version":1,"keys":[{"id":"x","name":"n","tenant":"t","digest":"zz","last":"l","created":1}]}', b"\xff"],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_overwritten(keys: KeyStore, content: str | bytes) -> None:
    keys.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for act in (keys.read, lambda: keys.create("a", "t"), lambda: keys.revoke("a")):
        with pytest.raises(KeyStoreError, match="is no key file"):
            act()
    assert keys.path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_a_file_that_others_may_write_is_refused(keys: KeyStore) -> None:
    keys.create("ci", "acme")
    keys.path.chmod(0o620)
    with pytest.raises(KeyStoreError, match=r"mode 620.*chmod 600"):
        keys.read()


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "real" / "keys.json")
    KeyStore(link).create("ci", "acme")
    assert link.is_symlink()
    assert len(KeyStore(tmp_path / "real" / "keys.json").read()) == 1


def test_writers_wait_for_each_other_by_whatever_name(
    keys: KeyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "LOCK_PATIENCE", 0.1)
    keys.create("ci", "acme")
    (tmp_path / "link.json").symlink_to(keys.path)
    with keys._locked(), pytest.raises(KeyStoreError, match="being changed by another process"):
        KeyStore(tmp_path / "link.json").create("other", "acme")


def test_no_writer_loses_what_another_wrote(tmp_path: Path) -> None:
    """Threads and processes: each reads, changes and replaces the whole file."""
    path = tmp_path / "keys.json"
    script = (
        "import sys; from pathlib import Path; from gateway.key_store import KeyStore\n"
        "for i in range(8): KeyStore(Path(sys.argv[1])).create(sys.argv[2] + str(i), 't')"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), name]) for name in "ab"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: KeyStore(path).create(f"c{i}", "t"), range(16)))
    assert [writer.wait(60) for writer in writers] == [0, 0]
    names = {key.name for key in KeyStore(path).read()}
    assert names == {f"{w}{i}" for w in "ab" for i in range(8)} | {f"c{i}" for i in range(16)}
    assert {file.name for file in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


def test_a_write_that_fails_changes_nothing(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys.create("ci", "acme").stored

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeyStoreError, match="No space left on device"):
        keys.revoke("ci")
    assert keys.read() == (key,)
    assert len(list(keys.path.parent.iterdir())) == 2


def test_a_key_that_is_revoked_stays_so_after_a_power_failure(
    keys: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is on disk before it is renamed, and its name before anybody is told."""
    keys.create("ci", "acme")
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(stat.S_ISDIR(os.fstat(file).st_mode)))
    keys.revoke("ci")
    assert synced == [False, True]


# -- a server with keys ------------------------------------------------------------------------------------------------


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_running_server_follows_the_file(start: Start, tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    gateway = await start(http={"key_store": keys.path, "admin_key": "sk-admin"})

    async def status(key: str | None) -> int:
        return (await gateway.get("/v1/models", headers={} if key is None else bearer(key)))[0]

    async def becomes(expected: int, key: str) -> None:
        async with asyncio.timeout(2.0):
            while await status(key) != expected:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)

    assert await status(None) == await status("hw-any") == 401, "no key is no way in"
    new = await asyncio.to_thread(keys.create, "ci", "acme")
    await becomes(200, new.key)
    await asyncio.to_thread(keys.path.write_text, "spoiled")
    await asyncio.sleep(1.2)
    assert await status(new.key) == 200, "an unreadable file changes nothing"
    await asyncio.to_thread(keys.path.unlink)
    await becomes(401, new.key)
    other = await asyncio.to_thread(keys.create, "ci", "acme")
    await becomes(200, other.key)
    await asyncio.to_thread(keys.revoke, "ci")
    await becomes(401, other.key)
    assert await status(None) == 401, "the last key that is revoked opens nothing"
    assert await status("sk-admin") == 200


async def test_a_file_that_was_refused_counts_once_it_is_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing of it has changed but its mode."""
    monkeypatch.setattr(key_watch, "INTERVAL", 0.01)
    keys = KeyStore(tmp_path / "keys.json")
    new = await asyncio.to_thread(keys.create, "ci", "acme")
    watch = KeyWatch(keys)
    async with asynccontextmanager(watch.context)(web.Application()):
        content = await asyncio.to_thread(keys.path.read_text)
        keys.path.chmod(0o666)
        await asyncio.to_thread(keys.path.write_text, content.replace('"revoked": null', '"revoked": 1'))
        await asyncio.sleep(0.1)
        assert watch.find(key_digest(new.key)) is not None
        keys.path.chmod(0o600)
        async with asyncio.timeout(2.0):
            while watch.find(key_digest(new.key)) is not None:  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.01)
    assert caplog.text.count("has mode 666") == 1, "said once, not at every look"


async def test_a_key_is_its_tenant_until_it_ends(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    keys = KeyStore(tmp_path / "keys.json", clock=clock)
    one = await asyncio.to_thread(lambda: keys.create("one", "acme", lifetime=10))
    two = await asyncio.to_thread(lambda: keys.create("two", "acme"))
    watch = KeyWatch(keys, clock=clock)
    await asyncio.to_thread(watch._load)
    keyring = Keyring(("sk-static",), None, watch)
    tenants = [keyring.authorise(Access.KEY, bearer(new.key), None) for new in (one, two)]
    assert [(tenant.id, tenant.key, tenant.admin) for tenant in tenants] == [
        ("acme", one.stored.id, False),
        ("acme", two.stored.id, False),
    ]
    assert keyring.authorise(Access.KEY, bearer("sk-static"), None).id not in {"acme", "local"}
    clock.now = 1010
    with pytest.raises(ApiError):
        keyring.authorise(Access.KEY, bearer(one.key), None)
    assert keyring.authorise(Access.KEY, bearer(two.key), None).id == "acme"


def test_a_key_file_is_a_lock_on_the_door(tmp_path: Path) -> None:
    """Also an empty one, and with it other addresses and origins are allowed as with any key."""
    watch = KeyWatch(KeyStore(tmp_path / "none.json"))
    assert not Keyring((), None, watch).open
    assert Keyring((), None).open
    check_exposed(Http(host="0.0.0.0", cors_origins=("*",), key_store=tmp_path / "none.json"))
    with pytest.raises(StartError):
        check_exposed(Http(host="0.0.0.0"))


def test_the_file_beside_the_models_is_used_if_it_is_there(tmp_path: Path) -> None:
    assert with_key_store(Http(), tmp_path).key_store is None
    KeyStore(tmp_path / "keys.json").create("ci", "acme")
    assert with_key_store(Http(), tmp_path).key_store == tmp_path / "keys.json"
    assert with_key_store(Http(key_store=Path("none")), tmp_path).key_store is None
    named = tmp_path / "other.json"
    assert with_key_store(Http(key_store=named), tmp_path).key_store == named


# -- the command -------------------------------------------------------------------------------------------------------


def run(path: Path, *arguments: str, fails: bool = False) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["keys", arguments[0], "--key-store", str(path), *arguments[1:]])
    assert (result.exception is not None) == fails, result
    return result.stdout, result.stderr if not fails else f"{result.exception}{result.stderr}"


def test_the_command_shows_a_key_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    out, said = run(path, "create", "ci", "--tenant", "acme", "--expires", "30d")
    key = out.strip()
    (stored,) = KeyStore(path).read()
    assert (key_digest(key).hex(), stored.tenant) == (stored.digest, "acme")
    assert stored.id in said
    assert stored.expires == stored.created + 30 * 86400
    run(path, "create", "laptop")
    table, _ = run(path, "list")
    assert key not in table
    assert stored.digest not in table
    lines = table.splitlines()
    assert lines[0].split() == ["id", "name", "tenant", "key", "created", "expires", "status"]
    assert lines[1].split()[:4] == [stored.id, "ci", "acme", f"…{key[-4:]}"]
    assert lines[2].split()[1:3] == ["laptop", "laptop"]
    assert "never active" in " ".join(lines[2].split())
    run(path, "revoke", "ci")
    assert "ci" not in run(path, "list")[0]
    assert "revoked" in run(path, "list", "--all")[0]


def test_the_command_speaks_json(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    new = json.loads(run(path, "create", "ci", "--json")[0])
    assert key_digest(new["key"]).hex() == KeyStore(path).read()[0].digest
    listed = json.loads(run(path, "list", "--json")[0])
    assert listed == [{k: v for k, v in new.items() if k != "key"}]
    assert listed[0].keys() == {"id", "name", "tenant", "last", "created", "status"} | {"expires", "revoked"}
    assert json.loads(run(path, "revoke", "ci", "--json")[0])["status"] == "revoked"
    assert json.loads(run(path, "list", "--json")[0]) == []


def test_no_file_is_no_place_for_a_key() -> None:
    _, said = run(Path("none"), "create", "ci", fails=True)
    assert "name one" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "a b"), "cannot be a name"),
        (("create", "a", "--expires", "soon"), "--expires: expected a time"),
        (("create", "a", "--expires", "99999999999d"), "a hundred years at most"),
        (("revoke", "a"), "there is no key"),
    ],
)
def test_the_command_refuses_in_a_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    _, said = run(tmp_path / "keys.json", *arguments, fails=True)
    assert complaint in said
