"""From a configuration to an engine: the one place that knows which runner there is."""

from __future__ import annotations

import secrets
import time

from cache.namespace import RootKeys
from cache.prefix_cache import PrefixCache

from .batch import Runner
from .config import EngineConfig, check_config
from .core import Engine
from .errors import BadRequest, StartError
from .failpoints import Failpoints, FaultyRunner
from .hash_model import HashRunner
from .openmp import shorten_spinning
from .scheduler import Scheduler


def assemble(config: EngineConfig) -> Engine:
    """Load the model and put an engine around it. Raises StartError with one line that says what to change."""
    check_config(config)
    runner = _load_runner(config)
    info = runner.info
    cache = PrefixCache(info.pages, info.page_size, enabled=config.prefix_cache)
    scheduler = Scheduler(
        cache=cache,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        max_model_len=info.max_model_len,
        watermark_pages=int(config.watermark * info.pages),
        clock=time.monotonic,
        root_key=RootKeys(
            # Nothing outlives this process yet that the digests would have to agree with.
            secret=secrets.token_bytes(32),
            model_digest=info.model_digest,
            dtype=info.dtype,
            page_size=info.page_size,
        ),
    )
    if not config.test_mode:
        return Engine(scheduler, runner)
    failpoints = Failpoints(cache.pool.deny)
    try:
        for spec in config.failpoints:
            failpoints.set(spec)
    except BadRequest as error:
        raise StartError(str(error)) from error
    return Engine(scheduler, FaultyRunner(runner, failpoints), failpoints=failpoints)


def _load_runner(config: EngineConfig) -> Runner:
    if config.hash_model is not None:
        return HashRunner(config)
    if config.model_dir is None:
        raise StartError("no model is configured")
    shorten_spinning()
    from .runner import TorchRunner  # noqa: PLC0415 - loads torch, which the hash model starts without

    return TorchRunner.load(config)
