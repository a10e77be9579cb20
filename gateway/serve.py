"""`headwater serve`: model, engine and application put together, and the start plan printed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from pydantic import ByteSize
from rich.console import Console

from engine.backlog import QueueLimits
from engine.config import EngineConfig, HashModelConfig
from engine.errors import StartError
from engine.process import EngineProcess

from .app import create_app
from .caching.ledger_file import LedgerFile
from .chat_template import ChatTemplate, TemplateError
from .config import CacheOptions, EngineOptions, Http, Limits, ModelOptions, Served, StoreOptions
from .faulty_store import split
from .key_file import with_file_keys
from .key_store import DEFAULT_NAME, NO_FILE
from .pull import pull
from .reply_format import UnknownFormat, reply_format
from .server import Stop, check_exposed, run, spare_the_collector
from .start_plan import Standing, start_plan
from .stores import open_stores
from .tenant_file import TenantFile
from .tenants import Tenants
from .tokenizer import Tokenizer, TokenizerError
from .tools.family import Family

HASH_MODEL = "hash"
"""The model reference of the hash model, which has no directory."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    served: Served
    tokenizer: Tokenizer
    template: ChatTemplate | None
    family: Family


async def serve(
    reference: str | None,
    *,
    http: Http,
    models: ModelOptions,
    engine: EngineOptions,
    caching: CacheOptions,
    keeping: StoreOptions,
    limits: Limits,
) -> int:
    """Serve until told to stop; the exit status. Raises StartError for whatever the operator has to change."""
    http = with_key_store(with_file_keys(http), models.store)
    check_exposed(http)
    file = None if caching.tenants is None else TenantFile(caching.tenants)
    tenants = Tenants() if file is None else file.tenants
    model = await asyncio.to_thread(open_model, reference, models, engine)
    config = engine_config(model.served, engine, caching, tenants, models.store)
    process = EngineProcess(config, limits=queue_limits(limits))
    stop = Stop()
    start = _Start(process, stop, Standing(http, caching, len(tenants.limits), keeping))
    failpoints = engine.failpoints if engine.test_mode else None
    async with open_stores(keeping, caching.cache_dir, tenants, failpoints) as stores:
        app = create_app(
            engine=process,
            served=model.served,
            tokenizer=model.tokenizer,
            template=model.template,
            family=model.family,
            http=http,
            limits=limits,
            tenants=tenants,
            stores=stores,
            ledger=_ledger(caching),
            contexts=(start.context, *(() if file is None else (file.followed_by(process),))),
        )
        await run(app, http, limits, started=_announce(model.served), stop=stop)
    if start.error is not None:
        raise start.error
    return 0


def _ledger(caching: CacheOptions) -> LedgerFile | None:
    if caching.ledger is None:
        return None
    return LedgerFile(caching.ledger, max_bytes=caching.ledger_max_bytes, files=caching.ledger_files)


def open_model(reference: str | None, models: ModelOptions, engine: EngineOptions) -> ServedModel:
    """The model's names and text side, after fetching what is missing. Blocks."""
    if reference == HASH_MODEL:
        tokenizer = Tokenizer.hash()
        served = Served(
            model_id=models.model_id or HASH_MODEL, aliases=models.extra_names, test_mode=engine.test_mode
        )
        return _with_family(served, tokenizer, ChatTemplate.hash(tokenizer), models)
    local = pull(models.store, reference, Console(stderr=True), offline=models.offline)
    served = Served(
        model_id=models.model_id or local.id,
        aliases=models.extra_names,
        model_dir=local.path,
        created=local.created,
        test_mode=engine.test_mode,
    )
    try:
        tokenizer = Tokenizer.load(local.path)
        template = ChatTemplate.load(local.path, tokenizer)
    except (TokenizerError, TemplateError) as error:
        raise StartError(f"the text side of {local.id} cannot be used: {error}") from None
    return _with_family(served, tokenizer, template, models)


def _with_family(
    served: Served, tokenizer: Tokenizer, template: ChatTemplate | None, models: ModelOptions
) -> ServedModel:
    try:
        family = reply_format(template, tools=models.tool_format, reasoning=models.reasoning_format)
    except UnknownFormat as error:
        raise StartError(str(error)) from None
    return ServedModel(served, tokenizer, template, family)


def with_key_store(http: Http, store: Path) -> Http:
    """The same settings with the key file beside the models, if none is named and one is there."""
    if http.key_store == NO_FILE:
        return http.model_copy(update={"key_store": None})
    if http.key_store is not None or not (store / DEFAULT_NAME).exists():
        return http
    return http.model_copy(update={"key_store": store / DEFAULT_NAME})


def engine_config(
    served: Served, options: EngineOptions, caching: CacheOptions, tenants: Tenants, store: Path
) -> EngineConfig:
    """The operator's options as the engine's own configuration."""
    hash_model = None
    if served.model_dir is None:
        hash_model = HashModelConfig(step_delay=options.hash_step_delay, token_delay=options.hash_token_delay)
    return EngineConfig(
        model_dir=None if served.model_dir is None else str(served.model_dir),
        hash_model=hash_model,
        device=options.device,
        dtype=options.dtype,
        page_size=options.page_size,
        pages=options.pages,
        kv_bytes=_bytes(options.kv_bytes),
        max_model_len=options.max_model_len,
        max_running=options.max_running,
        max_step_tokens=options.max_step_tokens,
        prefix_cache=options.prefix_cache,
        tenants=tenants.limits,
        other_tenants=tenants.others,
        host_bytes=_bytes(caching.host_cache) or 0,
        cache_dir=None if caching.cache_dir is None else str(caching.cache_dir),
        disk_bytes=_bytes(caching.disk_cache),
        deterministic=options.deterministic,
        forced_tokens=options.forced_tokens,
        end_runaways=options.end_runaways,
        threads=options.threads,
        native_kernels=options.native_kernels,
        native_cache=str(store / "native"),
        test_mode=options.test_mode,
        failpoints=tuple(split(options.failpoints)[1]),
    )


def _bytes(size: ByteSize | None) -> int | None:
    return None if size is None else int(size)  # msgspec knows no ByteSize


def queue_limits(limits: Limits) -> QueueLimits:
    """The operator's limits on the queue as its owner's."""
    return QueueLimits(
        requests=limits.max_queued_requests,
        tokens=limits.max_queued_tokens,
        tenant_requests=limits.max_tenant_queued,
    )


def _announce(served: Served) -> Callable[[str, int], None]:
    def announce(host: str, port: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        print(
            f"headwater: {served.model_id} at http://{shown}:{port}/v1 (loading)", file=sys.stderr, flush=True
        )

    return announce


class _Start:
    """Starts and stops the engine around the application; an engine that cannot start takes the server with it."""

    def __init__(self, engine: EngineProcess, stop: Stop, standing: Standing) -> None:
        self._engine = engine
        self._stop = stop
        self._standing = standing
        self.error: StartError | None = None

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        await self._engine.start()
        watcher = asyncio.create_task(self._watch(), name="engine start")
        try:
            yield
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
            await self._engine.stop()

    async def _watch(self) -> None:
        try:
            info = await self._engine.ready()
        except StartError as error:
            self.error = error
            self._stop.now()
        else:
            spare_the_collector()
            print(f"headwater: ready\n{start_plan(info, self._standing)}", file=sys.stderr, flush=True)
