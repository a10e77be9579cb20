"""The hash model's function as `docs/hash-model.md` states it, written for a client: no import of the server's code."""

from __future__ import annotations

from dataclasses import dataclass, field

IM_START, IM_END = 256, 257
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """The ids of one choice and why it ends. `folds[k]` is F of everything before `tokens[k]`."""

    tokens: list[int]
    folds: list[int]
    finish: str
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", bytes(token for token in self.tokens if token < 256).decode("ascii"))

    def logprob(self, k: int) -> float:
        return -float((mix64(self.folds[k] ^ self.tokens[k]) >> 40) % 1000 + 1) / 1024

    def stopped(self, stop: str | None) -> tuple[str, str]:
        """Text and finish reason with a stop string."""
        if stop is None or stop not in self.text:
            return self.text, self.finish
        return self.text[: self.text.index(stop)], "stop"


class Fold:
    """v and F of the tokens so far, one position after the other, for the base model."""

    def __init__(self, tokens: list[int]) -> None:
        self.length = self.word = self.value = 0
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        i = self.length
        self.word = (self.word + mix64((mix64(token) + i) & _MASK)) & _MASK
        self.value = (self.value + (2 * i + 1) * self.word) & _MASK
        self.length = i + 1


def mix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def predict(
    prompt: list[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0, index: int = 0, ignore_eos: bool = False
) -> Prediction:  # fmt: skip
    """What choice `index` of a request must answer."""
    fold = Fold(prompt)
    tokens: list[int] = []
    folds: list[int] = []
    while len(tokens) < max_tokens:
        h = mix64(fold.value ^ mix64(fold.length))
        if temperature > 0:
            h = mix64(h ^ mix64(seed & _MASK) ^ mix64(~index & _MASK))
        token = IM_END if h % 257 == 0 and not ignore_eos else 32 + (h >> 16) % 95
        tokens.append(token)
        folds.append(fold.value)
        if token == IM_END:
            return Prediction(tokens, folds, "stop")
        fold.add(token)
    return Prediction(tokens, folds, "length")


def chat_prompt(messages: list[dict[str, str]]) -> list[int]:
    """The ids of a chat in ChatML with the prompt for an answer."""
    ids: list[int] = []
    for message in messages:
        ids += [IM_START, *f"{message['role']}\n{message['content']}".encode(), IM_END, *b"\n"]
    return [*ids, IM_START, *b"assistant\n"]
