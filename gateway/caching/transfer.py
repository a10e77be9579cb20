"""Cache objects as files: POST /v1/caches/{id}/export and /v1/caches/import.

A file is a magic word, the length of a manifest, the manifest (what the object is made of, no longer than a request that
makes one), and the pages as the engine wrote them, which checks them again when it reads them. On its way a file lies in a private directory for as long as it
takes, and no longer, whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import TypeVar

import msgspec
import orjson
from aiohttp import web

from engine.client import EngineClient
from engine.errors import PinsExhausted, Unavailable
from engine.private_directory import PrivateDirectory
from engine.request import ImportPages, TransferReport

from ..body import FORM_TYPES
from ..caller import CALLER
from ..config import Limits
from ..desk import Desk
from ..errors import ApiError, InvalidRequest, Overloaded
from ..openai.fields import parse
from .caches import Caches, naming_pin
from .content import Contents
from .namespaces import Namespaces
from .object_fields import ImportCache, read_import
from .objects import CacheObject, CacheObjects, Content, Held

T = TypeVar("T")

MAGIC = b"HWCACHE\x02"
_LENGTH = struct.Struct("<Q")
ABOUT = 4096
"""Bytes of a manifest besides its content."""
CHUNK = 1 << 18
AT_ONCE = 2
"""Transfers at a time: each is a file of gigabytes, perhaps."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself. `model_digest` is that of the weights that its pages were computed with, `content` JSON as a
    client spells it, `tokens` a digest of the ids it came to: little is made of it before it is known to be right."""

    model: str
    model_digest: str
    content: bytes
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    caches: Caches
    contents: Contents
    objects: CacheObjects
    namespaces: Namespaces
    engine: EngineClient
    desk: Desk
    limits: Limits
    running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def export(self, request: web.Request) -> web.StreamResponse:
        """What is cached of the object now, as a download. 409 if nothing is."""
        tenant = request[CALLER].tenant.id
        info = self.desk.info()
        found = await self.objects.live(tenant, request.match_info["id"])
        held = await self.objects.content(found)
        manifest = Manifest(
            model=found.model,
            model_digest=info.model_digest,
            content=msgspec.json.encode(held.content),
            tokens=_digest(held.prompt),
        )
        async with self._one_of_few(), _private_directory() as directory:
            pages = directory / "pages"
            report = await self.engine.export_pages(
                str(pages), held.prompt, namespace=self.namespaces.of(tenant, salt=found.salt, key=found.key)
            )
            _check(report)
            if not report.tokens:
                raise ApiError(
                    409, f"Nothing of '{found.id}' is cached: warm it first.", param="id", code="cache_cold"
                )
            return await self._send(request, found, _opening(manifest), pages)

    async def take(self, request: web.Request) -> web.Response:
        """An uploaded file as a new object of the caller's own. 400 for a file that is none, or of other weights."""
        caller = request[CALLER]
        asked = parse(ImportCache, read_import(request.query), {})
        asked.check(self.limits, self.objects.clock())
        _check_upload(request, self.limits)
        info = self.desk.info()
        async with self._one_of_few(), _private_directory() as directory, caller.in_time():
            upload = _Upload(request, self.limits)
            manifest = await upload.manifest()
            if manifest.model_digest != info.model_digest:
                raise _bad_file("its pages were computed with other weights")
            held = await self._checked(manifest, info.max_model_len)
            pages = directory / "pages"
            await upload.save(pages)
            async with self.objects.making(caller.tenant.id, asked.name) as there:
                if there is not None:
                    raise ApiError(
                        409,
                        f"There is a cache named '{there.name}' already: {there.id}.",
                        param="name",
                        code="cache_name_taken",
                    )
                made = self.caches.made(caller.tenant.id, asked, held)
                async with self.caches.or_nothing(made, new=True), naming_pin():
                    await self._bring_in(made, held.prompt, pages)
                    await self.objects.keep(made, held)
        return await self.caches.answer(made)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _checked(self, manifest: Manifest, context: int) -> Held:
        """What the file says that it is made of, read like a client's own words: it is no more than that."""
        given = await asyncio.to_thread(_content, manifest)
        content = self.contents.read(
            messages=given.messages,
            tools=given.tools,
            variables=given.variables or None,
            prompt=given.ids if given.text is None else given.text,
        )
        prompt = await self.contents.tokens(content, context)
        if _digest(prompt) != manifest.tokens:
            raise _bad_file("its messages come to other tokens here")
        return Held(content=content, prompt=prompt)

    async def _bring_in(self, made: CacheObject, prompt: list[int], pages: Path) -> None:
        namespace = self.namespaces.of(made.tenant, salt=made.salt, key=made.key)

        def question(query_id: int) -> ImportPages:
            return ImportPages(
                query_id=query_id,
                path=str(pages),
                entry_id=made.id,
                lease=made.lease(self.objects.clock()),
                tenant=made.tenant,
                namespace=namespace,
            )

        report = await self.engine.import_pages(question)
        _check(report)
        found = await self.engine.look_up(prompt, namespace=namespace)
        if found.device + found.host + found.disk < min(report.tokens, len(prompt) - 1):
            raise _bad_file("its pages are not those of its tokens")

    async def _send(
        self, request: web.Request, found: CacheObject, opening: bytes, pages: Path
    ) -> web.StreamResponse:
        """Raises ConnectionError once the headers are out: a file that is cut off can only be told by its length."""
        with await asyncio.to_thread(pages.open, "rb") as file:
            size = (await asyncio.to_thread(os.fstat, file.fileno())).st_size
            response = web.StreamResponse()
            response.content_type = "application/octet-stream"
            response.content_length = len(opening) + size
            response.headers["Content-Disposition"] = f'attachment; filename="{found.id}.hwcache"'
            await response.prepare(request)
            try:
                chunk = opening
                while chunk:
                    async with asyncio.timeout(self.limits.write_timeout):
                        await response.write(chunk)
                    chunk = await asyncio.to_thread(file.read, CHUNK)
                await response.write_eof()
            except (OSError, TimeoutError) as error:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionError(f"the export of {found.id} was cut off") from error
        return response

    @asynccontextmanager
    async def _one_of_few(self) -> AsyncIterator[None]:
        if self.running.locked():
            raise Overloaded("Other caches are being exported or imported.")
        async with self.running:
            yield


class _Upload:
    """A body that is read piece by piece: none of it is held in memory but the manifest."""

    def __init__(self, request: web.Request, limits: Limits) -> None:
        self._content = request.content
        self._limits = limits

    async def manifest(self) -> Manifest:
        head = await self._exactly(len(MAGIC) + _LENGTH.size)
        (length,) = _LENGTH.unpack(head[len(MAGIC) :])
        if head[: len(MAGIC)] != MAGIC:
            raise _bad_file("it is none of ours")
        if length > self._limits.max_body + ABOUT:
            raise _bad_file("its manifest is too long")
        raw = await self._exactly(length)
        try:
            return await asyncio.to_thread(msgspec.msgpack.decode, raw, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _unreadable() from None

    async def save(self, path: Path) -> None:
        """The rest of the body. Raises Unavailable where there is no room for it."""
        left = int(self._limits.max_import)
        with await _on_disk(lambda: path.open("xb", buffering=0)) as file:
            while chunk := await self._in_time(lambda: self._content.read(CHUNK)):
                left -= len(chunk)
                if left < 0:
                    raise _too_large(self._limits)
                await _on_disk(partial(_write, file, chunk))

    async def _exactly(self, size: int) -> bytes:
        try:
            return await self._in_time(lambda: self._content.readexactly(size))
        except asyncio.IncompleteReadError:
            raise _bad_file("it ends too early") from None

    async def _in_time(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_timeout):
                return await read()
        except TimeoutError:
            raise ApiError(
                408,
                f"Nothing of the file came for {self._limits.body_timeout:g} seconds.",
                code="request_timeout",
                headers={"Connection": "close"},
            ) from None


@asynccontextmanager
async def _private_directory() -> AsyncIterator[Path]:
    """One that is gone afterwards, also if whoever wants it is cancelled while it is made."""
    making = asyncio.ensure_future(asyncio.to_thread(PrivateDirectory))
    try:
        yield (await asyncio.shield(making)).path
    finally:
        await asyncio.shield(_remove(making))


async def _remove(making: asyncio.Future[PrivateDirectory]) -> None:
    with contextlib.suppress(
        OSError
    ):  # it was not made, or the engine still writes there: the next one removes it
        await asyncio.to_thread((await making).close)


async def _on_disk(work: Callable[[], T]) -> T:
    """On a thread. Raises Unavailable for what a disk refuses, when it is full, say."""
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise Unavailable(f"The file cannot be kept here now: {error.strerror}.") from error


def _write(file: RawIOBase, data: bytes) -> None:
    """All of it: a disk that is nearly full takes a part first."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _opening(manifest: Manifest) -> bytes:
    raw = msgspec.msgpack.encode(manifest)
    return MAGIC + _LENGTH.pack(len(raw)) + raw


def _content(manifest: Manifest) -> Content:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert(orjson.loads(manifest.content), Content)
    except (orjson.JSONDecodeError, msgspec.ValidationError):
        raise _unreadable() from None


def _digest(prompt: list[int]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(prompt)).digest()


def _check_upload(request: web.Request, limits: Limits) -> None:
    kind = request.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()
    if kind in FORM_TYPES or request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(
            415,
            "The body must be the file as it is (Content-Type: application/octet-stream).",
            code="unsupported_media_type",
        )
    if (request.content_length or 0) > limits.max_import:
        raise _too_large(limits)


def _too_large(limits: Limits) -> ApiError:
    return ApiError(
        413,
        f"The file is larger than {limits.max_import} bytes.",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _bad_file(why: str) -> InvalidRequest:
    return InvalidRequest(f"This file cannot be imported: {why}.", param="file", code="invalid_cache_file")


def _unreadable() -> InvalidRequest:
    return _bad_file("its manifest cannot be read")


def _check(report: TransferReport) -> None:
    """Raises for what the engine could not do."""
    match report.kind:
        case None:
            return
        case "pins_exhausted":
            raise PinsExhausted(report.error or "")
        case "bad_request":
            raise _bad_file(report.error or "its pages cannot be read")
        case _:
            raise Unavailable(report.error or "The engine could not do this now.")
