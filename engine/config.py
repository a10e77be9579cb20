"""What an engine is started with. Frozen; every `auto` is resolved once, before anything is loaded."""

from __future__ import annotations

from typing import Literal

import msgspec

from cache.lease import TenantLimits

from .errors import StartError

STOP_SECONDS = 5.0
"""So long an engine that ends may write what is worth keeping of its cache to disk."""

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16"]


class HashModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hash model instead of weights. `step_delay` and `token_delay` are slept each step and for each computed token."""

    vocab_size: int = 259
    step_delay: float = 0.0
    token_delay: float = 0.0
    max_model_len: int = 32768


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine. None means: choose for me; `auto` likewise.

    `model_dir` is a directory in Hugging Face layout; `hash_model` replaces it. `kv_bytes` bounds the KV pages,
    `pages` sets their number outright. `max_step_tokens` is the token budget of one step, `max_running` the rows of one.
    `watermark` is the share of pages kept free at admission. `tenants` have limits of their own in the cache, all others
    `other_tenants` each. `host_bytes` is the cache's second tier, 0 for none; `cache_dir` turns its third on, files in that
    directory of up to `disk_bytes` together, and holds the secret (`cache.namespace.load_secret`) that makes their names.
    `deterministic` gives up speed where that is the price of answers that do not depend on what else runs or is cached.
    `forced_tokens` appends what a grammar leaves no choice about
    instead of sampling it; `end_runaways` ends strings and numbers under a schema that would not end (`engine.runaway`).
    `native_cache` is where C kernels are built when they are not
    there yet; a directory of the user's by default. `failpoints` need `test_mode`.
    """

    model_dir: str | None = None
    hash_model: HashModelConfig | None = None
    device: Device = "auto"
    dtype: DType = "auto"
    page_size: int = 16
    pages: int | None = None
    kv_bytes: int | None = None
    max_model_len: int | None = None
    max_running: int = 64
    max_step_tokens: int = 512
    watermark: float = 0.01
    prefix_cache: bool = True
    tenants: dict[str, TenantLimits] = {}
    other_tenants: TenantLimits = TenantLimits()
    host_bytes: int = 0
    cache_dir: str | None = None
    disk_bytes: int | None = None
    deterministic: bool = False
    forced_tokens: bool = True
    end_runaways: bool = True
    threads: int | None = None
    native_kernels: bool = True
    native_cache: str | None = None
    test_mode: bool = False
    failpoints: tuple[str, ...] = ()


def check_config(config: EngineConfig) -> None:
    """Raises StartError for what no model could start with: said at once, before one is loaded."""
    for name in (
        "page_size",
        "pages",
        "kv_bytes",
        "max_model_len",
        "max_running",
        "max_step_tokens",
        "threads",
        "disk_bytes",
    ):
        value: int | None = getattr(config, name)
        if value is not None and value < 1:
            raise StartError(f"{name} must be at least 1, not {value}")
    if config.max_step_tokens < config.max_running:
        raise StartError(
            f"a step of {config.max_step_tokens} tokens cannot advance {config.max_running} running sequences: "
            "raise max_step_tokens or lower max_running"
        )
    if not 0 <= config.watermark < 1:
        raise StartError(f"watermark is a share of the pages, from 0 to below 1, not {config.watermark}")
    if config.host_bytes < 0:
        raise StartError(f"host_bytes must be at least 0, not {config.host_bytes}")
    if config.disk_bytes is not None and config.cache_dir is None:
        raise StartError("disk_bytes bound what is kept in a cache_dir, and none is configured")
    if (config.host_bytes or config.cache_dir is not None) and not config.prefix_cache:
        raise StartError("host_bytes and cache_dir are for a prefix cache, which is turned off")
    if config.failpoints and not config.test_mode:
        raise StartError("failpoints exist in test mode only")


def context_of(config: EngineConfig, *, longest: int) -> int:
    """Tokens of the longest sequence: `max_model_len` if set, else the model's own. Raises StartError above that."""
    if config.max_model_len is None:
        return longest
    if config.max_model_len > longest:
        raise StartError(
            f"max_model_len {config.max_model_len} is more than the model's own {longest} positions"
        )
    return config.max_model_len
