"""GGUF metadata as tokenizer.json, tokenizer_config.json and a chat template.

A GGUF file names how text is split before the merges apply (`tokenizer.ggml.pre`) instead of carrying the rule. The rule
decides token boundaries, so an unknown name is refused: a near miss would answer, a little worse, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from ..errors import ModelError
from .gguf_file import Value

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"  # SentencePiece's visible space

# The split rules as the models' own tokenizer.json files state them.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
)


@dataclass(frozen=True, slots=True)
class _Split:
    """`regex` None is GPT-2's rule. `whole_first`: a word that is a token is taken without its merges."""

    regex: str | None = None
    single_digits: bool = False
    normal_form: bool = False
    whole_first: bool = False
    bos: bool = False


_SPLITS = {
    "gpt-2": _Split(),
    "smollm": _Split(single_digits=True),
    "llama-bpe": _Split(_LLAMA3, whole_first=True, bos=True),
    "llama3": _Split(_LLAMA3, whole_first=True, bos=True),
    "llama-v3": _Split(_LLAMA3, whole_first=True, bos=True),
    "smaug-bpe": _Split(_LLAMA3),
    "qwen2": _Split(_QWEN2, normal_form=True),
    "deepseek-r1-qwen": _Split(_QWEN2, normal_form=True, bos=True),
    "tekken": _Split(_TEKKEN, whole_first=True, bos=True),
}


class GGUFTokenizer:
    """The text side of a GGUF file. Raises ModelError if it is incomplete or of a kind that is not supported."""

    def __init__(self, file: str, metadata: Mapping[str, Value], vocab_size: int) -> None:
        self._file = file
        self._metadata = metadata
        self._tokens = self._strings("tokens")
        if len(self._tokens) > vocab_size:
            raise ModelError(f"{file} has {len(self._tokens)} tokens but embeds only {vocab_size}")
        self._kinds = self._token_types()
        self._vocab = {token: index for index, token in reversed(list(enumerate(self._tokens)))}
        model = metadata.get("tokenizer.ggml.model")
        if model == "gpt2":
            self.tokenizer, default_bos = self._byte_level()
        elif model == "llama":
            self.tokenizer, default_bos = self._sentencepiece(), True
        else:
            raise ModelError(f"{file}: tokenizer {model!r} is not supported (only 'gpt2' and 'llama')")
        self.adds_bos = metadata.get("tokenizer.ggml.add_bos_token", default_bos) is True
        self._add_tokens()
        self._add_post_processor(byte_level=model == "gpt2")

    @property
    def chat_template(self) -> str | None:
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) and template.strip() else None

    def config_json(self, max_length: int) -> dict[str, object]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": self.adds_bos,
            "add_eos_token": False,
            "bos_token": self._special("bos"),
            "eos_token": self._special("eos"),
            "unk_token": self._special("unknown"),
            "pad_token": self._special("padding"),
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_length,
        }

    # -- byte-level BPE: GPT-2 and what came of it ---------------------------------------------------------------------

    def _byte_level(self) -> tuple[Tokenizer, bool]:
        name = self._metadata.get("tokenizer.ggml.pre")
        split = _SPLITS.get(name) if isinstance(name, str) else None
        if split is None:
            known = ", ".join(_SPLITS)
            raise ModelError(f"{self._file}: text split rule {name!r} is not supported (only {known})")
        tokenizer = Tokenizer(
            models.BPE(
                vocab=self._vocab, merges=self._merges(), ignore_merges=split.whole_first, fuse_unk=False
            )
        )
        if split.normal_form:
            tokenizer.normalizer = normalizers.NFC()
        steps: list[pre_tokenizers.PreTokenizer] = []
        if split.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if split.regex is not None:
            steps.append(pre_tokenizers.Split(Regex(split.regex), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split.regex is None))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, split.bos

    def _merges(self) -> list[tuple[str, str]]:
        merges = []
        for merge in self._strings("merges"):
            left, _, right = merge.partition(" ")
            if left not in self._vocab or right not in self._vocab or left + right not in self._vocab:
                raise ModelError(f"{self._file} is damaged: the merge {merge[:40]!r} is not of its tokens")
            merges.append((left, right))
        return merges

    # -- SentencePiece BPE: Llama 2, Mistral ---------------------------------------------------------------------------

    def _sentencepiece(self) -> Tokenizer:
        unknown = self._special("unknown") or next(
            (token for token, kind in zip(self._tokens, self._kinds, strict=True) if kind == _UNKNOWN), None
        )
        tokenizer = Tokenizer(
            models.BPE(
                vocab=self._vocab,
                merges=self._merges_by_score(),
                unk_token=unknown,
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        prefix = self._metadata.get("tokenizer.ggml.add_space_prefix", True) is True
        to_pieces: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE)] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*to_pieces, normalizers.Replace(" ", _SPACE)])
        to_text: list[decoders.Decoder] = [
            decoders.Replace(_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
        tokenizer.decoder = decoders.Sequence(to_text + ([decoders.Strip(" ", 1, 0)] if prefix else []))
        return tokenizer

    def _merges_by_score(self) -> list[tuple[str, str]]:
        """SentencePiece joins the pair whose result scores best. As a list: every way to make each piece, best piece first."""
        scores = self._metadata.get("tokenizer.ggml.scores")
        if not isinstance(scores, list) or len(scores) != len(self._tokens):
            raise ModelError(f"{self._file} has no score for each of its tokens")
        normal = [index for index, kind in enumerate(self._kinds) if kind in (_NORMAL, _USER_DEFINED)]
        normal.sort(key=lambda index: -float(scores[index]))
        return [pair for index in normal for pair in self._ways_to(self._tokens[index])]

    def _ways_to(self, piece: str) -> list[tuple[str, str]]:
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        pairs = [(left, right) for left, right in cuts if left in self._vocab and right in self._vocab]
        return sorted(pairs, key=lambda pair: (self._vocab[pair[0]], self._vocab[pair[1]]))

    # -- special tokens ------------------------------------------------------------------------------------------------

    def _add_tokens(self) -> None:
        """Control tokens are special, user-defined ones are plain text that is never cut. Both keep their ids."""
        special: list[str | AddedToken] = []
        plain: list[str | AddedToken] = []
        for token, kind in zip(self._tokens, self._kinds, strict=True):
            if kind in (_CONTROL, _UNKNOWN) and token:
                special.append(AddedToken(token, normalized=False, special=True))
            elif kind == _USER_DEFINED and token:
                plain.append(AddedToken(token, normalized=False, special=False))
        self.tokenizer.add_special_tokens(special)
        self.tokenizer.add_tokens(plain)

    def _add_post_processor(self, *, byte_level: bool) -> None:
        steps: list[processors.PostProcessor] = []
        if byte_level:
            steps.append(processors.ByteLevel(trim_offsets=False))
        bos = self._special("bos")
        if self.adds_bos:
            if bos is None:
                raise ModelError(f"{self._file} wants a start token before every text but names none")
            steps.append(
                processors.TemplateProcessing(
                    single=f"{bos}:0 $A:0",
                    pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
                    special_tokens=[(bos, self._vocab[bos])],
                )
            )
        if steps:
            self.tokenizer.post_processor = processors.Sequence(steps)

    def _special(self, name: str) -> str | None:
        index = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(index, int) and 0 <= index < len(self._tokens):
            return self._tokens[index]
        return None

    # -- typed reads ---------------------------------------------------------------------------------------------------

    def _strings(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{self._file} has no tokenizer.ggml.{key}")
        return [item for item in value if isinstance(item, str)]

    def _token_types(self) -> list[int]:
        value = self._metadata.get("tokenizer.ggml.token_type")
        kinds = [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
        if len(kinds) != len(self._tokens):
            raise ModelError(f"{self._file} has no type for each of its tokens")
        return kinds
