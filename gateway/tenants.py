"""What each tenant is allowed and promised: `--tenants FILE`, a YAML file like

    default: {pins: 10%, default_ttl: 30m}
    tenants:
      acme:  {quota: 60%, floor: 20%, prompt_cache_key: isolate}
      guest: {quota: 5%, hard_pins: false, max_ttl: 5m}

`default` is for everybody who is not named, and for what is not said of those who are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from cache.lease import TenantLimits
from engine.errors import StartError

from .options import yaml_problem

LOCAL_TENANT = "local"
"""Everybody, where there are no keys."""
ADMIN_TENANT = "admin"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
"""A tenant's name: it appears in logs, tables and metrics."""


def _share(value: object) -> object:
    """`25%` or 0.25."""
    if isinstance(value, str) and (found := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", value.strip())):
        return float(found[1]) / 100
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("expected a share, such as 25% or 0.25")
    return float(value)


def duration(value: object) -> float:
    """Seconds of `30m`, `24h`, `7d`, or a number of them. Raises ValueError."""
    if isinstance(value, str) and (found := re.fullmatch(r"([0-9]+)([smhd])", value)):
        value = int(found[1]) * _SECONDS[found[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("expected a time, such as 30m, 24h or 90s")
    return float(value)


Share = Annotated[float, BeforeValidator(_share), Field(le=1)]
Duration = Annotated[float, BeforeValidator(duration)]


class TenantPolicy(BaseModel):
    """What the gateway lets a tenant do. Times are seconds.

    `prompt_cache_key`: `affinity` groups requests in flushes and statistics and keeps one cache for them all; `isolate` gives
    each key a cache of its own. A lease asked for without a time is `default_ttl` long, and none is longer than `max_ttl`.
    """

    model_config = ConfigDict(frozen=True)

    prompt_cache_key: Literal["affinity", "isolate"] = "affinity"
    default_ttl: float = 1800.0
    max_ttl: float = 86400.0
    hard_pins: bool = True


class _Entry(BaseModel):
    """What the file says of a tenant; None is nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quota: Share | None = None
    floor: Share | None = None
    pins: Share | None = None
    prompt_cache_key: Literal["affinity", "isolate"] | None = None
    default_ttl: Duration | None = None
    max_ttl: Duration | None = None
    hard_pins: Annotated[bool, Field(strict=True)] | None = None

    def said(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Tenants:
    """The limits and policies of all tenants, those that are named and all others."""

    def __init__(
        self,
        *,
        limits: Mapping[str, TenantLimits] | None = None,
        others: TenantLimits | None = None,
        policies: Mapping[str, TenantPolicy] | None = None,
        policy: TenantPolicy | None = None,
    ) -> None:
        self.limits = dict(limits or {})
        self.others = others or TenantLimits()
        self._policies = dict(policies or {})
        self._policy = policy or TenantPolicy()

    def take(self, other: Tenants) -> None:
        """From now on what `other` says, for all who hold this one."""
        self.limits, self.others = other.limits, other.others
        self._policies, self._policy = other._policies, other._policy

    def policy(self, tenant: str) -> TenantPolicy:
        return self._policies.get(tenant, self._policy)

    @classmethod
    def read(cls, path: Path) -> Tenants:
        """Of a file. Blocks. Raises StartError, one line that names the tenant and the field."""
        try:
            return cls.parse(path.read_text("utf-8"))
        except OSError as error:
            raise StartError(f"cannot read the tenants in {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise StartError(f"cannot read the tenants in {path}: {error}") from None
        except ValueError as error:
            raise StartError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, text: str) -> Tenants:
        """Raises ValueError with one line."""
        content = _mapping(_load(text), "the file", ("default", "tenants"))
        named = _mapping(content.get("tenants"), "tenants")
        for name in named:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ValueError(
                    f"tenants: {name!r} is no name: letters, digits and ._@-, up to 64, in quotes if all are digits"
                )
        default = _entry("default", content.get("default"))
        entries = {name: _entry(f"tenants.{name}", entry) for name, entry in named.items()}
        tenants = cls(
            limits={name: _limits(f"tenants.{name}", entry, default) for name, entry in entries.items()},
            others=_limits("default", default, default),
            policies={name: _policy(f"tenants.{name}", entry, default) for name, entry in entries.items()},
            policy=_policy("default", default, default),
        )
        tenants.check_sums()
        return tenants

    def check_sums(self) -> None:
        """Raises ValueError where floors and pins of the named would leave nothing to compute with. The engine, which knows
        its pages, asks for room for one sequence of full length; tenants without a name get what is left."""
        taken = {name: max(limits.floor, limits.pins) for name, limits in self.limits.items()}
        total = sum(taken.values())
        if total >= 1:
            parts = ", ".join(f"{name} {share:.0%}" for name, share in taken.items())
            raise ValueError(
                f"tenants: floors and pins (where none is said: {self.others.pins:.0%}) add up to {total:.0%} and have to "
                f"stay below 100%: {parts}"
            )


def _load(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {yaml_problem(error)}") from None


def _mapping(value: object, where: str, known: tuple[str, ...] | None = None) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a mapping")
    if known is not None and (unknown := [key for key in value if key not in known]):
        raise ValueError(f"unknown key {unknown[0]!r}: expected {' or '.join(known)}")
    return value


_ENTRY = TypeAdapter(_Entry)
_SHARES = tuple(TenantLimits.__struct_fields__)


def _entry(where: str, value: object) -> _Entry:
    try:
        return _ENTRY.validate_python(_mapping(value, where))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "extra_forbidden":
            raise ValueError(
                f"{where}.{first['loc'][0]}: unknown, expected {', '.join(_Entry.model_fields)}"
            ) from None
        raise ValueError(f"{where}.{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}") from None


def _limits(where: str, entry: _Entry, default: _Entry) -> TenantLimits:
    limits = TenantLimits(**{**default.said(*_SHARES), **entry.said(*_SHARES)})
    for name, share in (("floor", limits.floor), ("pins", limits.pins)):
        if share > limits.quota and getattr(entry, name) is not None:
            raise ValueError(f"{where}.{name}: {share:.0%} is more than the quota of {limits.quota:.0%}")
    quota = limits.quota  # bounds what is inherited
    return TenantLimits(quota=quota, floor=min(limits.floor, quota), pins=min(limits.pins, quota))


def _policy(where: str, entry: _Entry, default: _Entry) -> TenantPolicy:
    fields = tuple(TenantPolicy.model_fields)
    policy = TenantPolicy(**{**default.said(*fields), **entry.said(*fields)})
    if policy.default_ttl > policy.max_ttl:
        if entry.default_ttl is not None:
            raise ValueError(
                f"{where}.default_ttl: {entry.default_ttl:g} s is more than max_ttl, {policy.max_ttl:g} s"
            )
        return policy.model_copy(update={"default_ttl": policy.max_ttl})
    return policy
