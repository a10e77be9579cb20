"""The model as the gateway knows it: its names and its text side."""

from __future__ import annotations

from dataclasses import dataclass

from .chat_template import ChatTemplate
from .config import Served
from .errors import ApiError
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextModel:
    """`template` is None for a model that was never taught to chat."""

    served: Served
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @property
    def id(self) -> str:
        return self.served.model_id

    @property
    def names(self) -> tuple[str, ...]:
        return (self.served.model_id, *self.served.aliases)

    def check_name(self, name: str) -> None:
        """Raises ApiError 404 unless the model answers to `name`."""
        if name not in self.names:
            raise ApiError(
                404,
                f"The model '{name[:200]}' does not exist or you do not have access to it.",
                param="model",
                code="model_not_found",
            )
