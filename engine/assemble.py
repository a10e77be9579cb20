"""From a configuration to an engine: the one place that knows which runner there is."""

from __future__ import annotations

import logging
import secrets
import time
from pathlib import Path

from cache.accounts import Limits
from cache.namespace import RootKeys
from cache.prefix_cache import PrefixCache
from grammar.compiler import Compiler
from grammar.tokenizer_file import TokenizerError
from grammar.vocabulary import Vocabulary, byte_vocabulary, load_vocabulary

from .batch import Runner, RunnerInfo
from .cache_desk import CacheDesk
from .calibration import Calibration
from .compilations import MakeCompiler, NoCompiler
from .config import EngineConfig, check_config
from .core import Engine
from .errors import BadRequest, StartError
from .failpoints import Failpoints, FaultyRunner
from .hash_model import SPECIALS, HashRunner
from .openmp import shorten_spinning
from .scheduler import Scheduler

_log = logging.getLogger(__name__)


def assemble(config: EngineConfig, *, compiler: MakeCompiler | None = None) -> Engine:
    """Load the model and put an engine around it. Raises StartError with one line that says what to change.

    Grammars are compiled by `compiler`, which by default is one for the model's own vocabulary.
    """
    check_config(config)
    runner = _load_runner(config)
    info = runner.info
    cache = _cache(config, info)
    calibration = Calibration(config.max_step_tokens)
    root_key = RootKeys(
        # Nothing outlives this process yet that the digests would have to agree with.
        secret=secrets.token_bytes(32),
        model_digest=info.model_digest,
        dtype=info.dtype,
        page_size=info.page_size,
    )
    scheduler = Scheduler(
        cache=cache,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        max_model_len=info.max_model_len,
        watermark_pages=int(config.watermark * info.pages),
        clock=time.monotonic,
        root_key=root_key,
        saved=calibration.saved,
    )
    vocabulary, own_compiler = _grammars(config, info)
    failpoints = _failpoints(config, cache) if config.test_mode else None
    return Engine(
        scheduler,
        runner if failpoints is None else FaultyRunner(runner, failpoints),
        CacheDesk(scheduler, calibration, root_key),
        vocabulary=vocabulary,
        compiler=compiler or own_compiler,
        calibration=calibration,
        forced_tokens=config.forced_tokens,
        end_runaways=config.end_runaways,
        failpoints=failpoints,
    )


def _cache(config: EngineConfig, info: RunnerInfo) -> PrefixCache:
    try:
        return PrefixCache(
            info.pages,
            info.page_size,
            clock=time.monotonic,
            enabled=config.prefix_cache,
            limits=Limits(config.tenants, config.other_tenants),
            max_length=min(info.max_model_len, info.pages * info.page_size),
            page_bytes=info.page_bytes,
        )
    except ValueError as error:
        raise StartError(f"the tenants' limits cannot be kept: {error}") from error


def _failpoints(config: EngineConfig, cache: PrefixCache) -> Failpoints:
    failpoints = Failpoints(cache.pool.deny)
    try:
        for spec in config.failpoints:
            failpoints.set(spec)
    except BadRequest as error:
        raise StartError(str(error)) from error
    return failpoints


def _load_runner(config: EngineConfig) -> Runner:
    if config.hash_model is not None:
        return HashRunner(config)
    if config.model_dir is None:
        raise StartError("no model is configured")
    shorten_spinning()
    from .runner import TorchRunner  # noqa: PLC0415 - loads torch, which the hash model starts without

    return TorchRunner.load(config)


def _grammars(config: EngineConfig, info: RunnerInfo) -> tuple[Vocabulary, MakeCompiler]:
    """What the model's tokens spell, and a compiler of grammars over them."""
    size = info.vocab_size
    try:
        if config.model_dir is None:
            vocabulary = byte_vocabulary(size, SPECIALS)
        else:
            vocabulary = load_vocabulary(Path(config.model_dir), size=size)
    except TokenizerError as error:  # token ids need no tokenizer: only what needs one is refused
        reason = str(error)
        _log.warning("there will be no grammars: %s", reason)
        return Vocabulary((b"",) * size, {}, size), lambda wake: NoCompiler(reason)
    return vocabulary, lambda wake: Compiler(vocabulary, wake=wake)
