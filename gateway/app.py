"""The composition root: every part is made here, once, and handed what it needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from aiohttp import web

from engine.client import EngineClient

from .admin import Admin
from .anthropic.errors import error_response
from .anthropic.messages import Messages, MessageTurns
from .auth import Access, Keyring
from .browsers import BrowserPolicy
from .caching.accounting import Accounting
from .caching.caches import Caches
from .caching.content import Contents
from .caching.diagnoser import Diagnoser
from .caching.dry_run import DryRuns
from .caching.expiry import watched
from .caching.explain import Explain
from .caching.flush import Flush
from .caching.generations import SharedGenerations
from .caching.latecomers import Latecomers
from .caching.ledger import Ledger
from .caching.ledger_file import LedgerFile
from .caching.lookup import Lookup
from .caching.metrics import CacheMetrics, LastingCounters, TenantMetrics
from .caching.objects import CacheObjects
from .caching.openings import Openings
from .caching.prefill import Prefill
from .caching.recorder import Recorder
from .caching.records import Records
from .caching.rewarming import Rewarming
from .caching.routes import cache_routes
from .caching.stats import Stats
from .caching.transfer import Transfer
from .caller import CALLER
from .chat_template import ChatTemplate
from .config import Http, Limits, Served
from .desk import Desk, Listener
from .docs import Docs
from .following import Following
from .health import Health
from .key_store import KeyStore
from .key_watch import KeyWatch
from .lifecycle import Lifecycle
from .metrics import Metrics
from .middleware import Doorkeeper, Observer
from .model import TextModel
from .openai.answer import Answerer
from .openai.chat import ChatCompletions, ChatTurns
from .openai.completions import Completions
from .openai.models import Models
from .openai.stored import StoredChats
from .openai.tokenize import Tokenization
from .prompts import Prompts
from .replies import Replies
from .reply_format import reply_format
from .responses.background import Background
from .responses.conversations import Conversations
from .responses.create import CreateResponse, ResponseTurns
from .responses.diagnostics import Comparisons
from .responses.kept import KeptResponses
from .responses.records import ResponseRecords
from .responses.routes import conversation_routes, response_routes
from .routes import Route, RouteTable
from .sessions.metrics import StoreMetrics
from .sessions.sessions import Sessions
from .spoken import Spoken
from .stores import Stores
from .structured.check import SchemaChecks
from .structured.shapes import Shapes
from .tenants import Tenants
from .text_threads import TextThreads
from .tokenizer import Tokenizer
from .tools.family import Family
from .tools.offer import Offers
from .tools.spelling import call_writer, example_call
from .turns import Turns
from .version import VERSION

DESK = web.AppKey("desk", Desk)
LIFECYCLE = web.AppKey("lifecycle", Lifecycle)

CleanupContext = Callable[[web.Application], AsyncIterator[None]]


def create_app(
    *,
    engine: EngineClient,
    served: Served,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    http: Http,
    limits: Limits,
    family: Family | None = None,
    tenants: Tenants | None = None,
    stores: Stores | None = None,
    ledger: LedgerFile | None = None,
    contexts: Sequence[CleanupContext] = (),
) -> web.Application:
    """The application, not yet running.

    `family` is the format of the model's replies; None is told from the template. `stores` None end with the process.
    `tenants` has their policies; `ledger` is
    where requests are written down. `contexts` are run around it, in order, before its own: starting and stopping the engine is the caller's business.
    """
    family = family or reply_format(template)
    if template is not None:
        template = template.writing(call_writer(family))
    model = TextModel(served, tokenizer, template)
    lifecycle = Lifecycle()
    metrics = Metrics(model.id, engine)
    tenants = tenants or Tenants()
    stores = stores or Stores.of_this_process(tenants)
    namespaces, sessions = stores.namespaces, stores.sessions
    metrics.register(StoreMetrics(sessions, stores.link, stores.latency, stores.bulletin))
    accounting, counters, latecomers = Accounting(), LastingCounters(engine), Latecomers()
    book = None if ledger is None else Ledger(ledger, model.id)
    metrics.register(CacheMetrics(model.id, counters, accounting, book))
    metrics.register(TenantMetrics(model.id, accounting), by_tenant=True)
    records = Records(most_bytes=limits.explain_bytes, ttl=limits.explain_ttl)
    diagnoser = Diagnoser(records, tokenizer, lambda: 1 if engine.info is None else engine.info.page_size)
    recorder = Recorder(diagnoser, engine, namespaces, model.id)
    # the recorder first: it finds out what the others count by
    listeners: list[Listener] = [
        recorder,
        accounting,
        counters,
        latecomers,
        *([] if book is None else [book]),
    ]
    desk = Desk(engine, tokenizer, metrics, namespaces, listeners)
    threads = TextThreads()
    prompts = Prompts(model, threads)
    shapes = Shapes(threads, metrics)
    offers = Offers(shapes, example_call(family))
    replies = Replies(family, tokenizer.specials.ids.keys(), threads)
    answerer = Answerer(desk, threads, http, limits)
    health = Health(engine, lifecycle, stores.degraded)
    keys = None if http.key_store is None else KeyWatch(KeyStore(http.key_store))
    keyring = Keyring(http.api_keys, http.admin_key, keys)
    objects = CacheObjects(stores.store, namespaces.generations, most=limits.max_caches)
    openings = Openings(objects, tenants, model.id)
    contents = Contents(model, prompts, offers, limits)
    rewarming = Rewarming(objects, Prefill(desk), engine)
    caches = Caches(objects, contents, Prefill(desk), engine, model, tenants, accounting, rewarming, limits)
    chats = ChatTurns(model, offers, shapes, tenants, limits)
    turns = Turns(model, prompts, shapes, replies, Spoken(limits.splice_bytes), openings, desk, threads)
    dry_runs = DryRuns(model, prompts, chats, turns, engine, namespaces, openings, limits)
    flush = Flush(caches, namespaces, engine, desk, keyring, model, limits)
    background = Background(ResponseRecords(sessions), sessions, lifecycle, stores.bulletin)
    browsers = BrowserPolicy(http.cors_origins, http.host, guarded=keyring.open)

    app = web.Application(client_max_size=limits.max_body)
    routes = RouteTable(
        app,
        [
            *_openai(
                ChatCompletions(chats, turns, answerer, StoredChats(sessions, limits)),
                Completions(model, prompts, shapes, answerer, tenants, openings, limits),
                Models(model, engine),
                Tokenization(model, prompts, offers, engine, limits),
                SchemaChecks(model, shapes, engine, limits),
            ),
            *_messages(Messages(MessageTurns(model, offers, shapes, tenants, limits), turns, answerer)),
            *_responses(
                ResponseTurns(model, offers, shapes, tenants, limits),
                turns,
                sessions,
                answerer,
                comparisons=Comparisons(diagnoser, threads),
                background=background,
            ),
            *Explain(diagnoser, dry_runs, tokenizer, threads, limits).routes(),
            *cache_routes(
                caches,
                Lookup(dry_runs, limits),
                flush,
                Transfer(caches, contents, objects, namespaces, engine, desk, limits),
                Stats(objects, engine, accounting, keyring),
            ),
            *_operations(health, metrics, Docs(VERSION)),
            *_admin(Admin(engine, desk, flush, health, limits, served.test_mode, stores.faulty)),
        ],
    )
    observer = Observer(routes, browsers, metrics)
    app.middlewares.extend(
        [observer.observe, Doorkeeper(keyring, routes, lifecycle, limits.request_timeout).admit]
    )
    app.on_response_prepare.append(observer.add_headers)
    watched = [part.context for part in (keys, ledger) if part is not None]
    kept = _keeping(stores, objects, engine)
    app.cleanup_ctx.extend(
        [
            *watched,
            *kept,
            *contexts,
            _closing(threads),
            _watching(caches, latecomers),
            rewarming.context,
            background.context,
        ]
    )
    app[DESK] = desk
    app[LIFECYCLE] = lifecycle
    return app


def _openai(
    chat: ChatCompletions,
    completions: Completions,
    models: Models,
    tokenization: Tokenization,
    schema_checks: SchemaChecks,
) -> list[Route]:
    return [
        Route("POST", "/v1/chat/completions", chat.handle, work=True),
        Route("GET", "/v1/chat/completions", chat.stored.page),
        Route("GET", "/v1/chat/completions/{id}", chat.stored.get),
        Route("POST", "/v1/chat/completions/{id}", chat.stored.update),
        Route("DELETE", "/v1/chat/completions/{id}", chat.stored.delete),
        Route("GET", "/v1/chat/completions/{id}/messages", chat.stored.messages),
        Route("POST", "/v1/completions", completions.handle, work=True),
        Route("POST", "/v1/schemas/check", schema_checks.handle, work=True),
        Route("GET", "/v1/models", models.list),
        Route("GET", "/v1/models/{model:.+}", models.retrieve),  # model ids may contain slashes
        *(
            route
            for prefix in ("", "/v1")  # vLLM has them at the root, its clients look in both places
            for route in (
                Route("POST", f"{prefix}/tokenize", tokenization.tokenize, work=True),
                Route("POST", f"{prefix}/detokenize", tokenization.detokenize, work=True),
            )
        ),
    ]


def _messages(messages: Messages) -> list[Route]:
    at = "/v1/messages"
    return [
        Route("POST", at, messages.handle, work=True, says=error_response),
        Route("POST", f"{at}/count_tokens", messages.count_tokens, work=True, says=error_response),
    ]


def _responses(
    reader: ResponseTurns,
    turns: Turns,
    sessions: Sessions,
    answerer: Answerer,
    *,
    comparisons: Comparisons,
    background: Background,
) -> Iterator[Route]:
    records = ResponseRecords(sessions)
    creating = CreateResponse(reader, turns, records, answerer, comparisons, background)
    yield from response_routes(creating, KeptResponses(records, creating, background))
    yield from conversation_routes(Conversations(records, reader.limits))


def _operations(health: Health, metrics: Metrics, docs: Docs) -> list[Route]:
    async def scrape(request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=metrics.render(operator=request[CALLER].tenant.admin), headers=headers)

    return [
        Route("GET", "/health", health.ready, Access.PUBLIC),
        Route("GET", "/health/live", health.live, Access.PUBLIC),
        Route("GET", "/health/ready", health.ready, Access.PUBLIC),
        Route("GET", "/version", health.show_version),
        Route("GET", "/metrics", scrape),
        Route("GET", "/docs", docs.page),
        Route("GET", "/openapi.json", docs.openapi),
    ]


def _admin(admin: Admin) -> list[Route]:
    routes = [
        Route("GET", "/admin/state", admin.state, Access.ADMIN),
        Route("POST", "/admin/flush", admin.flush, Access.ADMIN),
    ]
    if admin.test_mode:
        routes.append(Route("POST", "/admin/failpoints", admin.set_failpoint, Access.ADMIN))
    return routes


def _keeping(stores: Stores, objects: CacheObjects, engine: EngineClient) -> list[CleanupContext]:
    """What keeps records in the store, and this server in step with the others there."""
    generations, bulletin = stores.namespaces.generations, stores.bulletin
    if bulletin is None or not isinstance(generations, SharedGenerations):
        return [stores.sessions.context]
    following = Following(bulletin, generations, stores.sessions, objects, engine)
    return [generations.context, stores.sessions.context, following.context]


def _watching(caches: Caches, latecomers: Latecomers) -> CleanupContext:
    async def context(app: web.Application) -> AsyncIterator[None]:
        async with watched(caches, latecomers):
            yield

    return context


def _closing(threads: TextThreads) -> CleanupContext:
    async def context(app: web.Application) -> AsyncIterator[None]:
        yield
        threads.close()

    return context
