"""Fixtures of the gateway. In all its tests a blocking call on the event loop is an error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from engine.model_store.store import LocalModel
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine
from tests.gateway import toys
from tests.gateway.live import Gateway, Start, running, settings

KINDS = ("hash", "byte_level", "legacy", "metaspace")


@pytest.fixture(scope="session")
def tokenizers_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {
        "hash": Tokenizer.hash(),
        "byte_level": Tokenizer.load(
            toys.write(tmp_path_factory.mktemp("bl"), toys.byte_level(), tokenizer_config=toys.CHATML_CONFIG)
        ),
        "legacy": Tokenizer.load(
            toys.write(
                tmp_path_factory.mktemp("legacy"),
                toys.sentencepiece(legacy=True),
                tokenizer_config=toys.LLAMA_CONFIG,
            )
        ),
        "metaspace": Tokenizer.load(
            toys.write(
                tmp_path_factory.mktemp("meta"),
                toys.sentencepiece(legacy=False),
                tokenizer_config=toys.LLAMA_CONFIG,
            )
        ),
    }


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    """Each kind of tokenizer in turn."""
    return tokenizers_by_kind[request.param]


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: LocalModel) -> Tokenizer:
    return Tokenizer.load(demo_model.path)


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[BlockBuster]:
    with blockbuster_ctx() as blockbuster:
        yield blockbuster


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start a gateway with settings of the test's own: `start(engine, http={…}, limits={…}, served={…})`."""
    async with AsyncExitStack() as stack:

        async def start_(
            engine: FakeEngine | None = None,
            *,
            template: bool | str = True,
            tenants: str = "",
            ledger: Path | None = None,
            **parts: dict[str, Any],
        ) -> Gateway:
            return await stack.enter_async_context(
                running(
                    engine or FakeEngine(),
                    *settings(**parts),
                    template=template,
                    tenants=tenants,
                    ledger=ledger,
                )
            )

        yield start_


@pytest.fixture
async def gateway(start: Start) -> Gateway:
    return await start()
