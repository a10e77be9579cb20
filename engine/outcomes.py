"""What a row brought: tokens are appended, and told; the last of them ends the sequence."""

from __future__ import annotations

from .batch import PlannedRow, RowResult
from .endings import Endings
from .events import Outbox
from .group import Member
from .publications import Publications
from .request import FinishReason, SequenceDelta, TokenLogprob
from .totals import Totals


class Outcomes:
    __slots__ = ("_endings", "_outbox", "_publications", "_totals")

    def __init__(
        self, *, publications: Publications, endings: Endings, outbox: Outbox, totals: Totals
    ) -> None:
        self._publications = publications
        self._endings = endings
        self._outbox = outbox
        self._totals = totals

    def take(self, member: Member, row: PlannedRow, outcome: RowResult) -> None:
        """Of a row that failed nothing else, and of a sequence that runs."""
        if member.prompt_logprobs is not None and outcome.prompt_logprobs is not None:
            member.prompt_logprobs += outcome.prompt_logprobs
        if outcome.postponed:
            return
        if row.sample:
            if outcome.token is None:
                self._endings.fail(member.group, "engine_error", "the model gave no token")
                return
            self._append(member, outcome.token, outcome)
        elif member.computed == len(member.tokens):
            self._tell(member, (), None, "length")  # nothing but the prompt was asked for
            self._publications.complete_prompt(member)

    def _append(self, member: Member, token: int, outcome: RowResult) -> None:
        """Add the token and those it forces, up to the first that ends the sequence."""
        before = len(member.tokens)
        member.tokens.append(token)
        finish = self._finish_reason(member, token)
        tokens: tuple[int, ...] = (token,)
        if outcome.forced and finish is None:
            finish = self._append_forced(member, outcome.forced)
            tokens = tuple(member.tokens[before:])
        self._totals.generated_tokens += len(tokens)
        self._tell(member, tokens, outcome.logprob, finish)
        if before == member.prompt_len:
            self._publications.complete_prompt(member)

    def _append_forced(self, member: Member, forced: tuple[int, ...]) -> FinishReason | None:
        """They are computed by the next plans, and what follows is sampled after the last of them."""
        before = len(member.tokens)
        finish: FinishReason | None = None
        for token in forced:
            member.tokens.append(token)
            finish = self._finish_reason(member, token)
            if finish is not None:
                break
        self._totals.forced_tokens += len(member.tokens) - before
        return finish

    def _finish_reason(self, member: Member, token: int) -> FinishReason | None:
        sampling = member.request.sampling
        if token in sampling.stop_token_ids and member.generated > sampling.min_tokens:
            return "stop"
        return "length" if len(member.tokens) >= member.limit else None

    def _tell(
        self,
        member: Member,
        tokens: tuple[int, ...],
        logprob: TokenLogprob | None,
        finish: FinishReason | None,
    ) -> None:
        prompt = None
        if member.prompt_logprobs is not None:
            prompt = tuple(member.prompt_logprobs)
            member.prompt_logprobs = None
        logprobs = None if logprob is None else (logprob,)
        self._outbox.deltas.append(
            SequenceDelta(member.request.request_id, member.index, tokens, finish, logprobs, prompt)
        )
        if finish is not None:
            self._endings.end(member)
