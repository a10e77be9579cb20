"""From a configuration to an engine: the one place that knows which runner there is."""

from __future__ import annotations

import logging
import math
import secrets
import time
from pathlib import Path

from cache.accounts import Limits
from cache.namespace import SECRET_BYTES, RootKeys, load_secret
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
from .page_moves import PageMoves
from .scheduler import Scheduler
from .tier_assembly import Tiers, assemble_tiers, page_kind
from .transfers import Place
from .wakeup import Wakeup

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
    wakeup = Wakeup()
    tiers = assemble_tiers(
        config,
        info,
        runner.memory,
        limits=cache.accounts.limits_of,
        recompute=lambda before, positions: calibration.seconds(before + positions, before) or math.inf,
        clock=time.monotonic,
    )
    kind = page_kind(info)
    root_key = RootKeys(
        secret=_secret(config),
        model_digest=info.model_digest,
        dtype=info.dtype,
        page_size=info.page_size,
        layout=kind.layout,
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
        tiers=None if tiers is None else tiers.lower,
    )
    moves = PageMoves(
        scheduler,
        runner.memory,
        Place(kind=kind, root_key=root_key, vocab_size=info.vocab_size, max_length=scheduler.max_length),
        None if tiers is None else tiers.traffic(runner.memory, wakeup.set, time.monotonic),
        wake=wakeup.set,
        clock=time.monotonic,
    )
    vocabulary, own_compiler = _grammars(config, info)
    failpoints = _failpoints(config, cache, tiers) if config.test_mode else None
    return Engine(
        scheduler,
        runner if failpoints is None else FaultyRunner(runner, failpoints),
        CacheDesk(scheduler, calibration, root_key, moves),
        moves,
        wakeup=wakeup,
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


def _secret(config: EngineConfig) -> bytes:
    """Without a directory that outlives this process the digests have to agree with nothing."""
    if config.cache_dir is None:
        return secrets.token_bytes(SECRET_BYTES)
    try:
        return load_secret(Path(config.cache_dir))
    except OSError as error:
        raise StartError(f"cache_dir {config.cache_dir} cannot be used: {error}") from error


def _failpoints(config: EngineConfig, cache: PrefixCache, tiers: Tiers | None) -> Failpoints:
    files = None if tiers is None else tiers.files
    failpoints = Failpoints(cache.pool.deny) if files is None else Failpoints(cache.pool.deny, files.deny)
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
