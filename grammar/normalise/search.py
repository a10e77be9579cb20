"""What a pattern finds: the strings in which it matches somewhere, as an expression for whole strings."""

from __future__ import annotations

from . import expression as rx
from .expression import ANYTHING, EMPTY, Complement, Expression
from .parse import End, Look, Marked, NotRegular, Optional, Options, Sequence, Start, as_expression, parse

_MOST_WAYS = 64


def found_by(pattern: str) -> Expression:
    """Raises BadPattern or NotRegular."""
    return rx.alternatives(_whole(way) for way in _ways(parse(pattern)))


Piece = Expression | Start | End | Look
Way = tuple[Piece, ...]


def _ways(tree: Marked) -> list[Way]:
    """The tree without alternatives around its marks: each way is a sequence of expressions and marks."""
    match tree:
        case Start() | End() | Look():
            return [(tree,)]
        case Sequence(parts):
            ways: list[Way] = [()]
            for part in parts:
                ways = [(*way, *more) for way in ways for more in _ways(part)]
                if len(ways) > _MOST_WAYS:
                    raise NotRegular("too many alternatives around anchors and lookarounds")
            return ways
        case Options(parts):
            return [way for part in parts for way in _ways(part)]
        case Optional(part):
            return [(), *_ways(part)]
        case _:
            return [(as_expression(tree),)]


def _whole(way: Way) -> Expression:  # noqa: PLR0912 - one case a piece
    """The strings that match in this way."""
    left: Expression = ANYTHING  # what may stand before the piece we are at
    rest = list(way)
    pieces: list[Expression] = []
    lookaheads: list[tuple[int, Look]] = []
    closed = False
    for piece in rest:
        match piece:
            case Start():
                before = _before(left, pieces)
                if not rx.nullable(before):
                    return rx.NOTHING
                left, pieces = EMPTY, []
                if any(at for at, _ in lookaheads):
                    raise NotRegular("^ behind a lookahead")
            case End():
                closed = True
            case Look(part, True, _):
                del part
                lookaheads.append((len(pieces), piece))
            case Look():
                if lookaheads:
                    raise NotRegular("a lookbehind behind a lookahead")
                left, pieces = _seen_behind(_before(left, pieces), piece), []
            case _:
                if closed:
                    if not rx.nullable(piece):
                        return rx.NOTHING
                else:
                    pieces.append(piece)
    after: Expression = EMPTY if closed else ANYTHING
    at = len(pieces)
    for position, look in reversed(lookaheads):
        after = _seen_ahead(rx.concat([*pieces[position:at], after]), look)
        at = position
    return rx.concat([left, *pieces[:at], after])


def _before(left: Expression, pieces: list[Expression]) -> Expression:
    return rx.concat([left, *pieces])


def _seen_ahead(after: Expression, look: Look) -> Expression:
    seen = rx.alternatives(_from_start(way) for way in _ways(look.part))
    return rx.both([after, Complement(seen) if look.negated else seen])


def _from_start(way: Way) -> Expression:
    """What follows a position at which a lookahead of these pieces holds."""
    closed = False
    pieces: list[Expression] = []
    for piece in way:
        if isinstance(piece, End):
            closed = True
        elif isinstance(piece, Start | Look):
            raise NotRegular("an anchor or a lookaround inside a lookahead")
        elif not closed:
            pieces.append(piece)
        elif not rx.nullable(piece):
            return rx.NOTHING
    return rx.concat([*pieces, EMPTY if closed else ANYTHING])


def _seen_behind(before: Expression, look: Look) -> Expression:
    options = []
    for way in _ways(look.part):
        opened = bool(way) and isinstance(way[0], Start)
        pieces = way[1:] if opened else way
        if any(isinstance(piece, Start | End | Look) for piece in pieces):
            raise NotRegular("an anchor or a lookaround inside a lookbehind")
        plain = [piece for piece in pieces if not isinstance(piece, Start | End | Look)]
        options.append(rx.concat([EMPTY if opened else ANYTHING, *plain]))
    seen = rx.alternatives(options)
    return rx.both([before, Complement(seen) if look.negated else seen])
