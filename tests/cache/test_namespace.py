"""Digests differ as soon as anything that decides about KV does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.namespace import RootKeys, client_namespace, digest

SECRET = b"s" * 32
Fields = st.dictionaries(st.text(max_size=3), st.none() | st.binary(max_size=4), max_size=4)


@given(Fields, Fields)
def test_different_fields_have_different_digests(
    a: dict[str, bytes | None], b: dict[str, bytes | None]
) -> None:
    assert (digest(SECRET, a) == digest(SECRET, b)) == (a == b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"x": b"a", "y": b"bc"}, {"x": b"ab", "y": b"c"}),
        ({"x": None}, {"x": b""}),
        ({"x": None}, {}),
        ({"x": b""}, {}),
        ({"xy": b"z"}, {"x": b"yz"}),
        ({"x": b"a\0\0\0\1yb"}, {"x": b"a", "y": b"b"}),
        ({"x": b"a\0\0\0\1y\1b"}, {"x": b"a", "y": b"b"}),
        ({"x": b"a", "y": b"b\0\0\0\1z\0"}, {"x": b"a", "y": b"b", "z": None}),
    ],
)
def test_frames_cannot_be_mistaken(a: dict[str, bytes | None], b: dict[str, bytes | None]) -> None:
    assert digest(SECRET, a) != digest(SECRET, b)


def test_the_order_of_fields_does_not_matter() -> None:
    assert digest(SECRET, {"x": b"1", "y": b"2"}) == digest(SECRET, {"y": b"2", "x": b"1"})


def test_a_digest_needs_the_secret() -> None:
    assert digest(SECRET, {"x": b"1"}) != digest(b"another", {"x": b"1"})
    assert len(digest(SECRET, {})) == 32


def test_a_salt_narrows_a_tenant_and_never_reaches_another() -> None:
    keys = {
        client_namespace(SECRET, tenant=tenant, salt=salt)
        for tenant in ("a", "b", "ab")
        for salt in (None, "", "a", "b")
    }
    assert len(keys) == 12


@pytest.mark.parametrize(
    "change",
    [{"secret": b"t"}, {"model_digest": "n"}, {"dtype": "bfloat16"}, {"page_size": 32}, {"layout": "other"}],
)
def test_every_part_of_the_model_decides(change: dict[str, object]) -> None:
    keys = RootKeys(secret=SECRET, model_digest="m", dtype="float32", page_size=16)
    other = replace(keys, **change)  # type: ignore[arg-type]
    assert keys(b"n", b"") != other(b"n", b"")


def test_namespace_and_adapter_decide() -> None:
    keys = RootKeys(secret=SECRET, model_digest="m", dtype="float32", page_size=16)
    assert (
        len({keys(namespace, adapter) for namespace in (b"", b"a", b"ab") for adapter in (b"", b"b", b"a")})
        == 9
    )
    assert keys(b"a", b"b") == keys(b"a", b"b")
