"""A tenants file is understood whole or refused in one line that names the tenant and the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.lease import TenantLimits
from engine.errors import StartError
from gateway.tenants import TenantPolicy, Tenants

FILE = """
default: {pins: 10%, default_ttl: 10m, max_ttl: 1h}
tenants:
  acme: {quota: 60%, floor: 0.2, pins: 12.5 %, prompt_cache_key: isolate, max_ttl: 2d}
  guest: {quota: 0.05, hard_pins: false, max_ttl: 90s}
  "42": {}
"""


def test_a_file_is_limits_for_the_engine_and_policies_for_the_gateway() -> None:
    tenants = Tenants.parse(FILE)
    assert tenants.limits == {
        "acme": TenantLimits(quota=0.6, floor=0.2, pins=0.125),
        "guest": TenantLimits(quota=0.05, pins=0.05),  # what it inherits is bounded by its quota
        "42": TenantLimits(pins=0.1),
    }
    assert tenants.others == TenantLimits(pins=0.1)
    assert tenants.policy("acme") == TenantPolicy(prompt_cache_key="isolate", default_ttl=600, max_ttl=172800)
    assert tenants.policy("guest") == TenantPolicy(default_ttl=90, max_ttl=90, hard_pins=False)
    assert tenants.policy("nobody") == tenants.policy("42") == TenantPolicy(default_ttl=600, max_ttl=3600)


@pytest.mark.parametrize("text", ["", "{}", "tenants:", "default: {}\ntenants: {}"])
def test_an_empty_file_says_nothing(text: str) -> None:
    tenants = Tenants.parse(text)
    assert (tenants.limits, tenants.others, tenants.policy("a")) == ({}, TenantLimits(), TenantPolicy())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a", "the file: expected a mapping"),
        ("tenant: {}", "unknown key 'tenant': expected default or tenants"),
        ("tenants: [a]", "tenants: expected a mapping"),
        ("tenants: {a: 1}", "tenants.a: expected a mapping"),
        ("tenants: {1: {}}", "tenants: 1 is no name"),
        ("tenants: {'a b': {}}", "tenants: 'a b' is no name"),
        ("tenants: {a: {quoat: 1}}", "tenants.a.quoat: unknown, expected quota, floor"),
        ("tenants: {a: {quota: 120%}}", "tenants.a.quota: "),
        ("tenants: {a: {quota: 1.2}}", "tenants.a.quota: expected a share, such as 25% or 0.25"),
        ("tenants: {a: {quota: -1}}", "tenants.a.quota: expected a share"),
        ("tenants: {a: {floor: true}}", "tenants.a.floor: expected a share"),
        ("tenants: {a: {floor: .nan}}", "tenants.a.floor: expected a share"),
        ("tenants: {a: {pins: much}}", "tenants.a.pins: expected a share"),
        ("tenants: {a: {max_ttl: 5 minutes}}", "tenants.a.max_ttl: expected a time, such as 30m, 24h or 90s"),
        ("tenants: {a: {max_ttl: 0}}", "tenants.a.max_ttl: expected a time"),
        ("tenants: {a: {max_ttl: .inf}}", "tenants.a.max_ttl: "),
        ("tenants: {a: {hard_pins: 2}}", "tenants.a.hard_pins: "),
        ("tenants: {a: {prompt_cache_key: split}}", "tenants.a.prompt_cache_key: "),
        ("tenants: {a: {default_ttl: 2h, max_ttl: 1h}}", "tenants.a.default_ttl: 7200 s is more than max_ttl, 3600 s"),
        ("tenants: {a: {quota: 10%, floor: 20%}}", "tenants.a.floor: 20% is more than the quota of 10%"),
        ("tenants: {a: {quota: 10%, pins: 20%}}", "tenants.a.pins: 20% is more than the quota of 10%"),
        ("default: {quota: 1%, floor: 2%}", "default.floor: 2% is more than the quota of 1%"),
        ("tenants: {a: {floor: 50%}, b: {floor: 50%}}", "add up to 100% and have to stay below 100%: a 50%, b 50%"),
        ("tenants: {a: {pins: 80%}, b: {floor: 10%}}", "pins (where none is said: 20%) add up to 100% and have to stay below 100%: a 80%, b 20%"),
        ("tenants: {a: {quota: [", "not YAML: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(text)
    with pytest.raises(StartError) as refused:
        Tenants.read(file)
    said = str(refused.value)
    assert said.startswith(f"{file}: ")
    assert complaint in said
    assert "\n" not in said


def test_what_is_inherited_is_bounded_by_the_quota() -> None:
    tenants = Tenants.parse("default: {floor: 10%, pins: 30%}\ntenants: {a: {quota: 5%}, b: {}}")
    assert tenants.limits["a"] == TenantLimits(quota=0.05, floor=0.05, pins=0.05)
    assert tenants.limits["b"] == tenants.others == TenantLimits(floor=0.1, pins=0.3)


def test_pins_and_a_floor_of_one_tenant_are_the_same_pages() -> None:
    assert Tenants.parse("tenants: {a: {floor: 70%, pins: 70%}}").limits["a"].floor == 0.7


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot read the tenants in .*none\.yaml: No such file"):
        Tenants.read(tmp_path / "none.yaml")
