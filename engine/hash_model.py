"""A model without weights whose every token proves which pages were read.

Instead of keys and values a page holds one 64-bit word for each position, and the next token is a function of all of
them, read back through the page table. A page that is stale, foreign, half copied or in the wrong place changes the fold,
and with it what follows. `docs/hash-model.md` states the function for clients; `reference` is the same in plain Python.

Letters: P pages, S positions in a page, R rows, T positions computed in a step, G pages read in a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import structs

from .batch import Masks, PageLoad, PageSave, Plan, PlannedRow, RowResult, RunnerInfo, StepResult
from .config import EngineConfig, context_of
from .errors import StartError
from .kv_budget import check_affordable, host_memory
from .request import SamplingParams, TokenLogprob
from .sequence import Sequence

IM_START, IM_END, END_OF_TEXT = 256, 257, 258  # after 256 byte tokens
SPECIALS = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|endoftext|>": END_OF_TEXT}
FIRST_PRINTABLE, PRINTABLE = 32, 95
END_EVERY = 257
POISON = 0xDEADBEEFDEADBEEF  # what a position holds that nobody has computed
DEFAULT_PAGES = 4096

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MUL1 = 0xBF58476D1CE4E5B9
_MUL2 = 0x94D049BB133111EB

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]


def mix64(x: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MUL1) & _MASK
    x = ((x ^ (x >> 27)) * _MUL2) & _MASK
    return x ^ (x >> 31)


def position_word(token: int, position: int, adapter: int) -> int:
    """What one token adds to the words of its position and of all after it."""
    return mix64(mix64(token ^ adapter) + position & _MASK)


def adapter_word(adapter: bytes) -> int:
    """Zero for the base model, else the first eight bytes of the adapter's content digest, mixed."""
    return mix64(int.from_bytes(adapter[:8].ljust(8, b"\0"), "big")) if adapter else 0


def choose(fold: int, length: int, generated: int, sampling: SamplingParams, index: int) -> int:
    """The token after `length` positions that fold to `fold`, `generated` of them not of the prompt."""
    h = mix64(fold ^ mix64(length))
    if sampling.temperature > 0:
        h = mix64(h ^ mix64(sampling.seed & _MASK) ^ mix64(~index & _MASK))
    stops = sampling.stop_token_ids
    barred = generated < sampling.min_tokens
    if h % END_EVERY == 0 and IM_END in stops and not barred:
        return IM_END
    token = FIRST_PRINTABLE + (h >> 16) % PRINTABLE
    if barred and len(stops) and not set(range(FIRST_PRINTABLE, FIRST_PRINTABLE + PRINTABLE)) <= set(stops):
        while token in stops:
            token = _next_printable(token)
    return token


def permitted(token: int, allowed: int) -> int:
    """The first token from `token` on that is one of `allowed`, a bit for each id and at least one; after the last comes 0."""
    later = allowed >> token
    if later:
        return token + _lowest(later)
    return _lowest(allowed)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def logprob(token: int, fold: int, top: int) -> TokenLogprob:
    """Made up, but always the same: the token between -1 and 0, the alternatives below it one apart."""
    value = -float((mix64(fold ^ token) >> 40) % 1000 + 1) / 1024
    best = []
    for rank in range(top):
        best.append((token, value - rank))
        token = _next_printable(token)
    return TokenLogprob(best[0][0] if best else token, value, tuple(best))


def reference(
    prompt: list[int],
    sampling: SamplingParams,
    index: int = 0,
    adapter: bytes = b"",
    max_length: int = 2**62,
    *,
    allowed: Callable[[list[int]], int] | None = None,
) -> list[int]:
    """The tokens of choice `index`, whatever else runs: one position after the other, no pages.

    With a grammar `allowed` tells for the answer so far which tokens may come next, a bit for each.
    """
    tokens = list(prompt)
    mixed = adapter_word(adapter)
    word = fold = 0
    position = 0
    while len(tokens) < min(len(prompt) + sampling.max_tokens, max_length):
        while position < len(tokens):
            word = (word + position_word(tokens[position], position, mixed)) & _MASK
            fold = (fold + (2 * position + 1) * word) & _MASK
            position += 1
        generated = len(tokens) - len(prompt)
        token = choose(fold, len(tokens), generated, sampling, index)
        if allowed is not None:
            token = permitted(token, allowed(tokens[len(prompt) :]))
        tokens.append(token)
        if token in sampling.stop_token_ids and generated >= sampling.min_tokens:
            break
    return tokens[len(prompt) :]


@dataclass(slots=True)
class _Table:
    """A sequence's page table as an array that grows: the first `count` of `pages` are set."""

    pages: Ints
    count: int = 0

    def upto(self, sequence: Sequence, needed: int) -> Ints:
        if self.count < needed:
            if needed > len(self.pages):
                self.pages = np.resize(self.pages, 2 * needed)
            self.pages[self.count : needed] = sequence.pages[self.count : needed]
            self.count = needed
        return self.pages[:needed]


class WordMemory:
    """The words of all pages, and of all slots. Implements `batch.PageMemory`."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.words: Words = np.full((pages, page_size), POISON, dtype=np.uint64)  # [P, S]
        self._slots: Words = np.empty((0, page_size), dtype=np.uint64)  # [slots, S]

    def reserve(self, slots: int) -> None:
        self._slots = np.full((slots, self.words.shape[1]), POISON, dtype=np.uint64)

    def save(self, saves: Iterable[PageSave]) -> None:
        for save in saves:
            self._slots[save.slot] = self.words[save.page]

    def load(self, loads: Iterable[PageLoad]) -> None:
        for load in loads:
            self.words[load.page] = self._slots[load.slot]

    def slot(self, slot: int) -> memoryview:
        return memoryview(self._slots[slot].view(np.uint8))

    def read(self, page: int, into: memoryview) -> None:
        into[:] = memoryview(self.words[page].view(np.uint8))

    def write(self, page: int, data: memoryview) -> None:
        self.words[page].view(np.uint8)[:] = np.frombuffer(data, dtype=np.uint8)


class HashRunner:
    """Carries out plans on one array of words. Penalties, logit bias and filters have nothing to act on here."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises StartError if the configuration names no hash model, one too small for bytes and specials, or pages or
        a context that cannot be had."""
        model = config.hash_model
        if model is None:
            raise StartError("the hash runner needs a hash model in its configuration")
        if model.vocab_size <= END_OF_TEXT:
            raise StartError(
                f"the hash model's vocabulary has {END_OF_TEXT + 1} tokens, not {model.vocab_size}"
            )
        self._size = config.page_size
        max_model_len = context_of(config, longest=model.max_model_len)
        pages = _page_count(config)
        check_affordable(pages, page_bytes=8 * self._size, available=host_memory())
        self._memory = WordMemory(pages, self._size)
        self._words = self._memory.words  # [P, S]
        ordinals = -(-model.max_model_len // self._size)
        self._weights: Words = 2 * np.arange(ordinals * self._size, dtype=np.uint64) + np.uint64(1)
        self._weights = self._weights.reshape(ordinals, self._size)  # [ordinal of a page, S]
        self._within = np.arange(self._size)  # [S]
        # Memory of this size asked for anew in each step comes as unmapped pages, dearer than the gather itself.
        self._gathered: Words = np.empty((0, self._size), dtype=np.uint64)  # [at least G, S]
        self._factors: Words = np.empty((0, self._size), dtype=np.uint64)  # [at least G, S]
        self._tables: dict[int, _Table] = {}
        self._step_delay = model.step_delay
        self._token_delay = model.token_delay
        self._info = RunnerInfo(
            model_digest="hash-model-1",
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            page_size=self._size,
            pages=pages,
            page_bytes=8 * self._size,
            weight_bytes=0,
            device="cpu",
            dtype="uint64",
            attention="hash",
            deterministic=True,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def memory(self) -> WordMemory:
        return self._memory

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        delay = self._step_delay + self._token_delay * plan.tokens
        if delay > 0:
            time.sleep(delay)
        for uid in plan.retired:
            self._tables.pop(uid, None)
        self._memory.load(plan.loads)
        for copy in plan.copies:
            self._words[copy.dst, : copy.tokens] = self._words[copy.src, : copy.tokens]
            self._words[copy.dst, copy.tokens :] = POISON
        if not plan.rows:
            return StepResult(())
        tables = [self._table(row) for row in plan.rows]
        self._write(plan.rows, tables)
        folds = self._fold(plan.rows, tables)
        return StepResult(
            tuple(
                self._outcome(row, table, fold, masks)
                for row, table, fold in zip(plan.rows, tables, folds, strict=True)
            )
        )

    def _table(self, row: PlannedRow) -> Ints:
        table = self._tables.get(row.sequence.uid)
        if table is None:
            table = self._tables[row.sequence.uid] = _Table(np.empty(64, dtype=np.int64))
        return table.upto(row.sequence, -(-(row.start + row.count) // self._size))

    def _write(self, rows: tuple[PlannedRow, ...], tables: list[Ints]) -> None:
        """Each position's word is the one before it, read back from its page, plus what its token adds."""
        size = self._size
        counts = np.array([row.count for row in rows])  # [R]
        starts = np.array([row.start for row in rows])  # [R]
        first = np.cumsum(counts) - counts  # [R], each row's first place in the arrays over T
        tokens = np.fromiter(_tokens_of(rows), dtype=np.uint64, count=int(counts.sum()))  # [T]
        within = np.arange(len(tokens)) - np.repeat(first, counts)
        positions = within + np.repeat(starts, counts)  # [T]
        adapters = np.array([adapter_word(row.sequence.request.adapter) for row in rows], dtype=np.uint64)
        added = _mix64(_mix64(tokens ^ np.repeat(adapters, counts)) + positions.astype(np.uint64))
        sums = np.cumsum(added, dtype=np.uint64)
        before = sums[first] - added[first]
        last_page = np.array(
            [int(t[(r.start - 1) // size]) if r.start else -1 for r, t in zip(rows, tables, strict=True)]
        )
        known = np.where(last_page >= 0, self._words[last_page, (starts - 1) % size], np.uint64(0))  # [R]
        pages = np.concatenate([table[row.start // size :] for row, table in zip(rows, tables, strict=True)])
        reach = np.array([len(table) - row.start // size for row, table in zip(rows, tables, strict=True)])
        page_first = np.cumsum(reach) - reach  # [R]
        at = pages[
            np.repeat(page_first, counts) + positions // size - np.repeat(starts // size, counts)
        ]  # [T]
        opened = at[positions % size == 0]
        self._words[opened] = POISON  # whoever writes a page's first position is its new owner
        self._words[at, positions % size] = sums + np.repeat(known - before, counts)

    def _fold(self, rows: tuple[PlannedRow, ...], tables: list[Ints]) -> list[int]:
        """The weighted sum of all words up to each row's end. One gather over every page of every row."""
        size = self._size
        reach = np.array([len(table) for table in tables])  # [R]
        first = np.cumsum(reach) - reach
        table = np.concatenate(tables)  # [G]
        ordinals = np.arange(len(table)) - np.repeat(first, reach)
        if len(table) > len(self._gathered):
            self._gathered = np.empty((2 * len(table), size), dtype=np.uint64)
            self._factors = np.empty_like(self._gathered)
        words = self._words.take(table, axis=0, out=self._gathered[: len(table)], mode="clip")  # [G, S]
        factors = self._weights.take(ordinals, axis=0, out=self._factors[: len(table)], mode="clip")
        used = np.array([(row.start + row.count - 1) % size + 1 for row in rows])
        last = first + reach - 1
        words[last] *= self._within < used[:, None]
        partial = np.einsum("gs,gs->g", words, factors)  # [G]
        folds: list[int] = np.add.reduceat(partial, first).tolist()
        return folds

    def _outcome(self, row: PlannedRow, table: Ints, fold: int, masks: Masks) -> RowResult:
        sequence = row.sequence
        sampling = sequence.request.sampling
        prompt = None
        if sampling.prompt_logprobs is not None and row.start < sequence.prompt_len - 1:
            prompt = self._prompt_logprobs(row, table, sampling.prompt_logprobs)
        if not row.sample:
            return RowResult(prompt_logprobs=prompt)
        mask = masks.of(row)
        if isinstance(mask, RowResult):
            return structs.replace(mask, prompt_logprobs=prompt)
        length = row.start + row.count
        token = choose(fold, length, length - sequence.prompt_len, sampling, sequence.index)
        if mask is not None:
            token = permitted(token, int.from_bytes(mask, "little"))
        chosen = None if sampling.logprobs is None else logprob(token, fold, sampling.logprobs)
        return RowResult(token, chosen, prompt)

    def _prompt_logprobs(self, row: PlannedRow, table: Ints, top: int) -> tuple[TokenLogprob, ...]:
        """Of prompt token `p`, from the word of position `p - 1`."""
        sequence = row.sequence
        end = min(row.start + row.count, sequence.prompt_len - 1)
        words = self._words[table].reshape(-1)[row.start : end].tolist()
        return tuple(logprob(sequence.tokens[row.start + i + 1], word, top) for i, word in enumerate(words))


def _page_count(config: EngineConfig) -> int:
    """`pages` if set, else what `kv_bytes` holds. Raises StartError if that is not a single page."""
    if config.pages is not None:
        return config.pages
    if config.kv_bytes is None:
        return DEFAULT_PAGES
    page_bytes = 8 * config.page_size
    if config.kv_bytes < page_bytes:
        raise StartError(f"{config.kv_bytes} bytes of KV memory hold no page of {page_bytes} bytes")
    return config.kv_bytes // page_bytes


def _tokens_of(rows: tuple[PlannedRow, ...]) -> list[int]:
    tokens: list[int] = []
    for row in rows:
        if row.count == 1:
            tokens.append(row.sequence.tokens[row.start])
        else:
            tokens += row.sequence.tokens[row.start : row.start + row.count]
    return tokens


def _mix64(x: Words) -> Words:
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MUL1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MUL2)
    return x ^ (x >> np.uint64(31))


def _next_printable(token: int) -> int:
    return FIRST_PRINTABLE + (token + 1 - FIRST_PRINTABLE) % PRINTABLE
