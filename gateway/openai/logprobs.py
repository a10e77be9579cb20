"""Log-probabilities as OpenAI writes them: one shape for chat, another for completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.request import TokenLogprob

from ..pieces import TokenDetail
from ..tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say; the value OpenAI documents for tokens that cannot be."""


def chat_logprobs(details: Iterable[TokenDetail], tokenizer: Tokenizer) -> dict[str, object]:
    """The `logprobs` object of a chat choice or chunk."""
    return {
        "content": [_entry(d.logprob, tokenizer) for d in details if d.logprob is not None],
        "refusal": None,
    }


def _entry(item: TokenLogprob, tokenizer: Tokenizer) -> dict[str, object]:
    top = [_token(token, logprob, tokenizer) for token, logprob in item.top]
    return {**_token(item.token, item.logprob, tokenizer), "top_logprobs": top}


def _token(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, object]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


class CompletionLogprobs:
    """The four parallel lists of a completions choice, built token by token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add_prompt(
        self, prompt: Sequence[int], offsets: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> None:
        for token, offset, item in zip(prompt, offsets, logprobs, strict=True):
            self._add(token, offset, item)

    def add(self, details: Iterable[TokenDetail], shift: int) -> None:
        """`shift` is the length of the text before the answer: the echoed prompt."""
        for detail in details:
            self._add(detail.id, detail.offset + shift, detail.logprob)

    def copy(self) -> CompletionLogprobs:
        """The same so far, to be continued on its own."""
        other = CompletionLogprobs(self._tokenizer)
        other._tokens = self._tokens.copy()
        other._logprobs = self._logprobs.copy()
        other._top = self._top.copy()
        other._offsets = self._offsets.copy()
        return other

    def wire(self) -> dict[str, object]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }

    def _add(self, token: int, offset: int, item: TokenLogprob | None) -> None:
        self._tokens.append(self._name(token))
        self._offsets.append(offset)
        self._logprobs.append(None if item is None else finite(item.logprob))
        self._top.append(None if item is None else self._alternatives(item))

    def _alternatives(self, item: TokenLogprob) -> dict[str, float]:
        """The best tokens and the chosen one, which need not be among them."""
        best = {self._name(token): finite(logprob) for token, logprob in item.top}
        best.setdefault(self._name(item.token), finite(item.logprob))
        return best

    def _name(self, token: int) -> str:
        """A token's text; bytes that are not text by themselves are spelled, so that no two of them look alike."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """Within what JSON and clients take: never above 0 (rounding may put it there), never minus infinity or NaN."""
    return min(logprob, 0.0) if logprob > LEAST else LEAST
