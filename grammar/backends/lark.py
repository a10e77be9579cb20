"""Any tree of nodes as one grammar in llguidance's dialect of Lark.

llguidance splits text into the longest *lexemes* its terminals allow before it parses, so that what a terminal swallows no
rule gets back. Two things keep that from narrowing the language:

* Neighbours that are regular become one terminal, whose regular expression finds the cut between them itself.
* Free text is told apart from what ends it. Where it may be the last thing it is a terminal of its own; for each excluded
  text that may follow there is a *lazy* lexeme, the free text with that text behind it, which ends where the first
  such text does. The rules after it go on behind that text. Special tokens end a lexeme by themselves.

For the second a node is rendered together with all that follows it, as a sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from llguidance import regex_to_lark

from ..errors import BadGrammar, BadSchema, TooComplex
from ..spec import (
    Choice,
    Concat,
    Ebnf,
    Either,
    FreeText,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Marker,
    Regex,
    Repeat,
    Whitespace,
)

MOST_RULES: Final = 20_000
"""Repeats of trees with free text are written out; more rules than this are refused."""

_OPTIONS: Mapping[Whitespace, Mapping[str, object]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "flexible": {"whitespace_pattern": "[ \\t\\n\\r]{1,2}"},
}

_EMPTY: Final = '""'

_Sequence = tuple[Grammar, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """`text` is what llguidance compiles, `markers` the special tokens that the tree names: no other may appear."""

    text: str
    markers: frozenset[int]


def render(grammar: Grammar, specials: Mapping[str, int]) -> Rendered:
    """Raises BadGrammar for a tree without meaning, BadSchema for text that is no schema, TooComplex. Checks neither
    patterns nor schemas nor Lark text: compiling does."""
    return _Renderer(specials).render(grammar)


def renders(grammar: Grammar) -> bool:
    """Whether every node of the tree has a form in Lark."""
    match grammar:
        case Ebnf():
            return False
        case Concat(parts=nodes) | Either(options=nodes):
            return all(map(renders, nodes))
        case Repeat(part=part):
            return renders(part)
    return True


class _Renderer:
    def __init__(self, specials: Mapping[str, int]) -> None:
        self._specials = specials
        self._markers: set[int] = set()
        self._lines: list[str] = []
        self._rules: dict[_Sequence, str] = {}
        self._open: dict[int, tuple[Grammar, bool | None]] = {}
        self._closed_rules: dict[Either | Repeat, str] = {}
        self._schemas: dict[JsonSchema, str] = {}
        self._terminals: dict[str, str] = {}
        self._free: dict[frozenset[str], str] = {}
        self._grammars: dict[str, str] = {}

    def render(self, grammar: Grammar) -> Rendered:
        start = self._rule(self._flat((grammar,)))
        # What is forced is looked up by parsing on until there is a choice. A client's grammar may force an endless text
        # in ever more ways, which no limit of the library ends.
        forcing = ['%llguidance {"no_forcing": true}'] if self._grammars else []
        main = "\n".join([*forcing, f"start: {start}", *self._lines])
        named = [{"name": "main", "lark_grammar": main}]
        named += [{"name": name, "lark_grammar": text} for text, name in self._grammars.items()]
        return Rendered(json.dumps({"grammars": named}), frozenset(self._markers))

    # -- sequences -----------------------------------------------------------------------------------------------------

    def _rule(self, sequence: _Sequence) -> str:
        """The name of the rule for these nodes, one after the other, up to the end of the text."""
        name = self._rules.get(sequence)
        if name is None:
            if len(self._rules) >= MOST_RULES:
                raise TooComplex("the grammar repeats too much text with free text in it")
            name = self._rules[sequence] = f"r{len(self._rules)}"
            line = len(self._lines)
            self._lines.append("")
            self._lines[line] = f"{name}: {self._body(sequence)}"
        return name

    def _body(self, sequence: _Sequence) -> str:
        closed = next((i for i, node in enumerate(sequence) if self._is_open(node)), len(sequence))
        if closed == len(sequence):
            return self._plain(sequence)
        if closed:
            return f"{self._plain(sequence[:closed])} {self._rule(sequence[closed:])}"
        node, rest = sequence[0], sequence[1:]
        if isinstance(node, FreeText):
            return self._free_text(node, rest)
        return " | ".join(self._rule(option) for option in self._expanded(node, rest))

    def _expanded(self, node: Grammar, rest: _Sequence) -> Iterator[_Sequence]:
        """The sequences that an Either, a Choice or a Repeat before `rest` stands for."""
        match node:
            case Either(options=options):
                for option in options:
                    yield self._flat((option, *rest))
            case Choice(options=texts):
                for text in texts:
                    yield self._flat((Literal(text), *rest))
            case Repeat(part=part, least=least, most=most, between=between):
                if least == 0:
                    yield rest
                if most is None or most > 0:
                    following = part if not between else Concat((Literal(between), part))
                    more = Repeat(following, max(least - 1, 0), None if most is None else most - 1)
                    yield self._flat((part, more, *rest))

    def _free_text(self, node: FreeText, rest: _Sequence) -> str:
        """Alternatives: the text as the last thing, before each special token, before each excluded text."""
        without = _shortest(node.without)
        free = self._free_terminal(without)
        alternatives: list[str] = []
        for text, following in self._openings(rest, without):
            end = next((end for end in without if text.startswith(end)), None)
            if text and end is None:  # a special token ends it
                alternatives.append(f"{self._terminal(f'{free} {_quoted(text)}')} {self._rule(following)}")
            elif end is not None:
                head = self._head(free, end)
                alternatives.append(
                    f"{head} {self._rule(self._flat((Literal(text[len(end) :]), *following)))}"
                )
            else:
                alternatives.append(f"{free} {self._rule(following)}" if following else free)
        return " | ".join(dict.fromkeys(alternatives))

    def _openings(
        self, sequence: _Sequence, ends: frozenset[str], before: str = ""
    ) -> Iterator[tuple[str, _Sequence]]:
        """What may follow free text: a text that begins with one of `ends` and the rest behind it, or nothing and a
        sequence that is empty or begins with a special token. `before` is the part of the text seen so far."""
        for option in self._alternatives(sequence, {sequence}):
            first = option[0] if option else None
            if isinstance(first, Literal):
                text = before + first.text
                if any(map(text.startswith, ends)):
                    yield text, option[1:]
                elif any(end.startswith(text) for end in ends):
                    yield from self._openings(option[1:], ends, text)
                else:
                    raise BadGrammar(
                        f"free text that {_shown(text)} may follow has to exclude how that begins"
                    )
            elif first is not None and self._special(first) is not None:
                yield before, option
            elif before:
                raise BadGrammar(
                    f"free text cannot be followed by only {_shown(before)}: it excludes more than that"
                )
            elif first is None:
                yield "", option
            else:
                raise BadGrammar(
                    f"free text cannot be followed by {_kind(first)}: nothing says where it ends"
                )

    def _alternatives(self, sequence: _Sequence, seen: set[_Sequence]) -> Iterator[_Sequence]:
        """The same as sequences that begin with one thing each, or are empty."""
        if not sequence or not isinstance(sequence[0], Either | Choice | Repeat):
            yield sequence
            return
        for option in self._expanded(sequence[0], sequence[1:]):
            if option not in seen:
                seen.add(option)
                yield from self._alternatives(option, seen)

    def _flat(self, nodes: _Sequence) -> _Sequence:
        """The same without Concat and empty texts, with neighbouring texts in one."""
        flat: list[Grammar] = []
        for node in self._leaves(nodes):
            if isinstance(node, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].text + node.text)
            else:
                flat.append(node)
        return tuple(flat)

    def _leaves(self, nodes: _Sequence) -> Iterator[Grammar]:
        for node in nodes:
            if isinstance(node, Concat):
                yield from self._leaves(node.parts)
            elif isinstance(node, Marker) and node.text not in self._specials:
                if node.text:
                    yield Literal(node.text)
            elif not (isinstance(node, Literal) and not node.text):
                yield _checked(node)

    def _special(self, node: Grammar) -> int | None:
        return self._specials.get(node.text) if isinstance(node, Marker) else None

    def _is_open(self, node: Grammar) -> bool:
        """Whether free text is in it, so that what follows has to be known."""
        match node:
            case FreeText():
                return True
            case Concat(parts=nodes) | Either(options=nodes):
                return self._known_open(node, nodes)
            case Repeat(part=part):
                return self._known_open(node, (part,))
        return False

    def _known_open(self, node: Grammar, inside: _Sequence) -> bool:
        """The answer is kept by identity, with the node: all tools are asked about behind each of them."""
        _, known = self._open.get(id(node), (node, None))
        if known is None:
            known = any(map(self._is_open, inside))
            self._open[id(node)] = node, known
        return known

    # -- nodes without free text ---------------------------------------------------------------------------------------

    def _plain(self, nodes: _Sequence) -> str:
        """A rule's body for closed nodes: regular ones that are neighbours in one terminal."""
        symbols: list[str] = []
        run: list[Grammar] = []
        for node in (*nodes, None):
            if node is not None and self._is_regular(node):
                run.append(node)
                continue
            if run:
                symbols += self._terminals_of(run)
                run = []
            if node is not None:
                symbols.append(self._symbol(node))
        return " ".join(symbols) or _EMPTY

    def _terminals_of(self, run: list[Grammar]) -> Iterator[str]:
        """One for regular neighbours, and one each for parts at their end that may be missing or come again.

        A terminal that ended with such a part would swallow what only begins like it, and then neither goes on nor back.
        """
        end = len(run)
        while end and _is_elastic(run[end - 1]):
            end -= 1
        if end and not isinstance(run[end - 1], Literal | Marker):
            end = len(run)  # what is before them has no certain end either: a terminal finds the cut
        if end:
            yield self._terminal(" ".join(map(self._regular, run[:end])))
        yield from map(self._symbol, run[end:])

    def _symbol(self, node: Grammar) -> str:
        """A node that is not regular, or elastic."""
        match node:
            case JsonSchema():
                return self._json(node)
            case Lark(text=text):
                _check_lark(text)
                return "@" + self._grammars.setdefault(text, f"g{len(self._grammars)}")
            case Marker(text=text):
                token = self._specials[text]
                self._markers.add(token)
                return f"<[{token}]>"
            case Choice(options=texts):
                return f"({' | '.join(map(_quoted, texts))})"
            case Either() | Repeat():
                return self._closed(node)
        raise BadGrammar(f"{_kind(node)} cannot be put together with other parts")

    def _closed(self, node: Either | Repeat) -> str:
        """The name of its rule. It is written once, though it may follow each of a hundred tools."""
        name = self._closed_rules.get(node)
        if name is None:
            if isinstance(node, Either):
                body = " | ".join(self._plain(self._flat((option,))) for option in node.options)
            else:
                between = _quoted(node.between) if node.between else ""
                body = _repeated(self._plain(self._flat((node.part,))), node.least, node.most, between)
            name = self._closed_rules[node] = f"c{len(self._closed_rules)}"
            self._lines.append(f"{name}: {body}")
        return name

    def _is_regular(self, node: Grammar) -> bool:
        match node:
            case Literal() | Choice() | Regex():
                return True
            case Marker(text=text):
                return text not in self._specials
            case Concat(parts=nodes) | Either(options=nodes):
                return all(map(self._is_regular, nodes))
            case Repeat(part=part):
                return self._is_regular(part)
        return False

    def _regular(self, node: Grammar) -> str:
        """An expression for a terminal. Looser than `|` outside of parentheses is nothing in it."""
        match node:
            case Literal(text=text) | Marker(text=text):
                return _quoted(text)
            case Regex(pattern=pattern):
                return f"/{regex_to_lark(pattern, 'dw')}/" if pattern else _EMPTY
            case Choice(options=texts):
                return f"({' | '.join(map(_quoted, texts))})"
            case Concat(parts=nodes):
                return f"({' '.join(map(self._regular, nodes)) or _EMPTY})"
            case Either(options=options):
                return f"({' | '.join(self._regular(_checked(option)) for option in options)})"
            case Repeat(part=part, least=least, most=most, between=between):
                return _repeated(
                    self._regular(_checked(part)), least, most, _quoted(between) if between else ""
                )
        raise AssertionError(f"{node!r} is not regular")

    def _json(self, node: JsonSchema) -> str:
        name = self._schemas.get(node)
        if name is None:
            name = self._schemas[node] = f"j{len(self._schemas)}"
            self._lines.append(f"{name}: %json {_with_options(node)}")
        return name

    def _free_terminal(self, without: frozenset[str]) -> str:
        name = self._free.get(without)
        if name is None:
            name = self._free[without] = f"FREE{len(self._free)}"
            excluded = " | ".join(map(_quoted, sorted(without)))
            barred = f" & ~(/(?s:.*)/ ({excluded}) /(?s:.*)/)" if without else ""
            self._lines.append(f"{name}: /(?s:.*)/{barred}")
        return name

    def _head(self, free: str, end: str) -> str:
        """Free text and the text that ends it."""
        key = f"{free} {_quoted(end)}"
        name = self._terminals.get(key)
        if name is None:
            name = self._terminals[key] = f"h{len(self._terminals)}"
            self._lines.append(f"{name}[lazy]: {key}")
        return name

    def _terminal(self, expression: str) -> str:
        name = self._terminals.get(expression)
        if name is None:
            name = self._terminals[expression] = f"T{len(self._terminals)}"
            self._lines.append(f"{name}: {expression}")
        return name


def _is_elastic(node: Grammar) -> bool:
    """May be missing, or come again."""
    match node:
        case Choice(options=texts):
            return "" in texts
        case Either(options=options):
            return any(map(_is_elastic, options))
    return isinstance(node, Repeat)


def _checked(node: Grammar) -> Grammar:
    """The node. Raises BadGrammar if it can hold no text at all."""
    match node:
        case Choice(options=()) | Either(options=()):
            raise BadGrammar("a choice without options allows nothing")
        case Repeat(least=least, most=most) if least < 0 or (most is not None and most < least):
            raise BadGrammar(f"a part cannot be repeated {least} to {most} times")
        case FreeText(without=without) if "" in without:
            raise BadGrammar("free text cannot exclude the empty text")
    return node


def _shortest(texts: tuple[str, ...]) -> frozenset[str]:
    """Without those that contain another one: excluding the other excludes them."""
    return frozenset(text for text in texts if not any(other != text and other in text for other in texts))


def _repeated(part: str, least: int, most: int | None, between: str) -> str:
    if most == 0:
        return _EMPTY
    if not between or most == 1:
        return f"({part}){_times(least, most)}"
    more = f"({part}) ({between} ({part})){_times(max(least - 1, 0), None if most is None else most - 1)}"
    return f"({more})?" if least == 0 else f"({more})"


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


_LENGTH_OF_A_RULE: Final = re.compile(
    r"^[ \t]*[\w-]+[ \t]*\[[^\]\n]*?\b(max_tokens|stop)[ \t]*=", re.MULTILINE
)


def _check_lark(text: str) -> None:
    """llguidance forgets how to take tokens back once a rule counts them or ends at a text that it hides."""
    found = _LENGTH_OF_A_RULE.search(text)
    if found:
        line = text.count("\n", 0, found.start(1)) + 1
        raise BadGrammar(f"line {line}: a rule cannot have {found[1]}= here; suffix= ends one at a text")


def _with_options(node: JsonSchema) -> str:
    """The schema's text with our options in it, and none of its own."""
    try:
        schema = json.loads(node.schema)
    except RecursionError as error:
        raise TooComplex("the schema is nested too deeply") from error
    except ValueError as error:
        raise BadSchema(f"the schema is not JSON: {error}") from error
    if schema is False:
        raise BadSchema("the schema accepts nothing")
    text = "{}" if schema is True else node.schema.strip()
    if not text.startswith("{"):
        raise BadSchema("a schema is an object or a boolean")
    if isinstance(schema, dict) and "x-guidance" in schema:
        text = json.dumps({key: value for key, value in schema.items() if key != "x-guidance"})
    options = json.dumps(_OPTIONS[node.whitespace])
    members = text[1:].lstrip()
    comma = "" if members == "}" else ","
    return f'{{"x-guidance":{options}{comma}{members}'


def _quoted(text: str) -> str:
    return json.dumps(text)


def _shown(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else text[:40] + "…", ensure_ascii=False)


def _kind(node: Grammar) -> str:
    names = {
        JsonSchema: "a schema",
        Regex: "a pattern",
        Lark: "a Lark grammar",
        Ebnf: "an EBNF grammar",
        FreeText: "free text",
    }
    return names.get(type(node), "this")
