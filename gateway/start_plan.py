"""What the engine made of the machine, in the words of an operator: printed once it is ready."""

from __future__ import annotations

from dataclasses import dataclass

from cache.redis_address import RedisAddress
from engine.request import EngineInfo

from .config import CacheOptions, Http, StoreOptions


@dataclass(frozen=True, slots=True)
class Standing:
    """What of the operator's settings is worth reading again: who may come in, and where things are written."""

    http: Http
    caching: CacheOptions
    tenants: int
    keeping: StoreOptions


def start_plan(info: EngineInfo, standing: Standing) -> str:
    """Several lines, no colour: it also ends in log files."""
    cache = info.pages * info.page_bytes
    tokens = info.pages * info.page_size
    together = min(info.max_running, max(1, tokens // info.max_model_len))
    batch = f"up to {info.max_running} sequences, {info.max_step_tokens} tokens a step"
    rows = [
        ("device", f"{info.device}, {info.dtype}, {info.attention} attention"),
        ("weights", f"{_size(info.weight_bytes)}, ready after {info.load_seconds:.1f} s"),
        ("KV cache", f"{_size(cache)}: {info.pages:,} pages of {info.page_size} tokens = {tokens:,} tokens"),
        *_lower_tiers(info, standing.caching),
        ("context", f"{info.max_model_len:,} tokens a sequence"),
        ("batch", f"{batch}; the cache holds {together} of full length"),
        ("answers", _answers(info)),
        ("callers", _callers(standing)),
        ("sessions", _sessions(standing)),
    ]
    if standing.caching.ledger is not None:
        most = standing.caching.ledger_files * standing.caching.ledger_max_bytes
        rows.append(("ledger", f"{standing.caching.ledger}, up to {_size(most)}"))
    return "\n".join(f"  {name:<10} {value}" for name, value in rows)


def _lower_tiers(info: EngineInfo, caching: CacheOptions) -> list[tuple[str, str]]:
    """Those that are on: what they may hold is what the machine has less of."""
    rows = []
    for name, budget, place in (
        ("host cache", info.host_bytes, "in memory"),
        ("disk cache", info.disk_bytes, f"in {caching.cache_dir}"),
    ):
        if budget:
            tokens = budget // info.page_bytes * info.page_size
            rows.append((name, f"{_size(budget)} {place} = {tokens:,} tokens"))
    return rows


def _answers(info: EngineInfo) -> str:
    if info.deterministic:
        return "deterministic: the same whatever else runs or is cached"
    return "as exact as the kernels (--deterministic makes them independent of what else runs or is cached)"


def _sessions(standing: Standing) -> str:
    keeping = standing.keeping
    hours = f"{keeping.session_ttl / 3600:g} h"
    if keeping.redis is not None:
        return f"in {RedisAddress.parse(keeping.redis)}, for {hours}; {_size(keeping.session_bytes)} here for when it is away"
    if standing.caching.cache_dir is not None:
        return f"in {standing.caching.cache_dir}, for {hours}"
    return f"in memory, {_size(keeping.session_bytes)} of them, for {hours}"


def _callers(standing: Standing) -> str:
    http = standing.http
    doors = [f"{len(http.api_keys)} keys of options"] if http.api_keys else []
    doors += [] if http.key_store is None else [f"the keys in {http.key_store}"]
    named = f"; {standing.tenants} tenants with limits" if standing.tenants else ""
    return (" and ".join(doors) or "this machine only, without a key") + named


def _size(count: int) -> str:
    """Bytes with a binary prefix: 1536 is 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
