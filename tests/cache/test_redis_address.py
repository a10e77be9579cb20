"""Urls of Redis, in every shape, and what they say when they are wrong."""

from __future__ import annotations

import pytest

from cache.redis_address import RedisAddress


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://:s%40cret@[::1]:7000/3", "redis://[::1]:7000/3"),
        ("rediss://app:s%40cret@redis.example/0", "rediss://app@redis.example:6379"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock"),
        ("redis+sentinel://:s%40cret@a,b:1/main/4", "redis+sentinel://a:26379,b:1/main/4"),
        ("rediss+cluster://app:s%40cret@a:1,b", "rediss+cluster://app@a:1,b:6379"),
    ],
)
def test_a_url_is_read_and_shown_without_its_password(url: str, shown: str) -> None:
    address = RedisAddress.parse(url)
    assert str(address) == shown
    assert address.password == ("s@cret" if "cret" in url else None)
    assert "cret" not in f"{address} {address!r}"


def test_a_password_from_elsewhere_wins() -> None:
    assert RedisAddress.parse("redis://:one@host", password="two").password == "two"


def test_every_part_is_kept() -> None:
    address = RedisAddress.parse(
        "rediss+sentinel://u:p@a:1,b:2/main/4?sentinel_password=q&ssl_ca_certs=/ca&ssl_check_hostname=false"
    )
    assert address == RedisAddress(
        shape="sentinel",
        hosts=(("a", 1), ("b", 2)),
        service="main",
        db=4,
        username="u",
        password="p",
        sentinel_password="q",
        tls=True,
        tls_files={"ssl_ca_certs": "/ca"},
        check_hostname=False,
    )


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://host", "begins with"),
        ("redis://", "names a host"),
        ("redis://host:99999", "no port"),
        ("redis://host/one", "number of a database"),
        ("redis://a,b", "several hosts"),
        ("unix://", "path of a socket"),
        ("redis+sentinel://host", "names the master"),
        ("redis+cluster://host/1", "no databases"),
        ("redis://:secret@host?timeout=1", "no option 'timeout'"),
    ],
)
def test_a_wrong_url_is_named(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        RedisAddress.parse(url)
    assert "secret" not in str(caught.value)
