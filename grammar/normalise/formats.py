"""`format` as regular expressions, as their RFCs define them.

Counting characters beside anything else is too much for engines, so some lengths are kept by a stricter form: mail
addresses have at most 32 characters besides dots before the @ or at most 64 without a dot, and behind it at most three
labels of any length or twelve of at most twenty characters. Leap seconds are only taken at 23:59:60 UTC, fractions of
seconds have at most nine digits, so that a small model cannot write them for ever, and host names have no labels in other
scripts (xn--). What is said of texts outside such a form goes by `wider`. What is no regular language is named in
IRREGULAR with why.
"""

from __future__ import annotations

from functools import cache

from .expression import Expression
from .search import found_by

_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_OFFSET = r"(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = (
    rf"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,9}})?{_OFFSET}"
    r"|23:59:60(?:\.[0-9]{1,9})?(?:[zZ]|[+\-]00:00))"
)
_ANY_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]+)?{_OFFSET}"
_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_A, _X = "[a-zA-Z0-9]", r"[a-zA-Z0-9\-]"
# No "--" as third and fourth character (RFC 5891, 4.2.3.1).
_LABEL = rf"{_A}(?:{_A}|{_X}{_A}|{_X}{_X}{_A}|{_X}(?:{_A}{_X}|-{_A}){_X}{{0,58}}{_A})?"
# At most 253 characters.
_SHORT = rf"{_A}(?:{_A}|{_X}{_A}|{_X}{_X}{_A}|{_X}(?:{_A}{_X}|-{_A}){_X}{{0,15}}{_A})?"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL}){{0,2}}|{_SHORT}(?:\.{_SHORT}){{0,11}})"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_H16 = "[0-9a-fA-F]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [
        rf"(?:{_H16}:){{6}}{_LS32}",
        rf"::(?:{_H16}:){{5}}{_LS32}",
        rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
        rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
)
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~]"
# At most 64 characters: up to 64 without a dot, up to 32 and the dots between them.
_LOCAL = rf"(?:{_ATOM}{{1,64}}|{_ATOM}(?:\.?{_ATOM}){{0,31}})"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,31}"'
_PCT = "%[0-9a-fA-F]{2}"
_PLAIN = r"a-zA-Z0-9\-._~!$&'()*+,;="
_PCHAR = rf"(?:[{_PLAIN}:@]|{_PCT})"
_SCHEME = r"[a-zA-Z][a-zA-Z0-9+\-.]*"
_USER = rf"(?:(?:[{_PLAIN}:]|{_PCT})*@)?"
_HOST = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[{_PLAIN}:]+)\]|(?:[{_PLAIN}]|{_PCT})*)"
_AUTHORITY = rf"//{_USER}{_HOST}(?::[0-9]*)?(?:/{_PCHAR}*)*"
_ABSOLUTE = rf"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_ROOTLESS = rf"{_PCHAR}+(?:/{_PCHAR}*)*"
_NO_COLON = rf"(?:[{_PLAIN}@]|{_PCT})+(?:/{_PCHAR}*)*"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = rf"{_SCHEME}:(?:{_AUTHORITY}|{_ABSOLUTE}|{_ROOTLESS})?{_TAIL}"
_RELATIVE = rf"(?:{_AUTHORITY}|{_ABSOLUTE}|{_NO_COLON})?{_TAIL}"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*".replace("[^/~]", r"(?:[^/~]|\n|\r)")

_PATTERNS = {
    "date": _DATE,
    "date-time": rf"{_DATE}[tT]{_TIME}",
    "time": _TIME,
    "duration": rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)",
    "email": rf"(?:{_LOCAL}|{_QUOTED})@(?:{_DOMAIN}|\[{_IPV4}\]|\[IPv6:(?:{_IPV6})\])",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": _URI,
    "uri-reference": rf"{_URI}|{_RELATIVE}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
_WIDER = {
    "date-time": rf"{_DATE}[tT]{_ANY_TIME}",
    "time": _ANY_TIME,
    "email": r"(?:[a-zA-Z0-9!#$%&'*+\-/=?\^_`{|}~.]+|\"[\s\S]*\")@[!-~]+",
    "hostname": r"[a-zA-Z0-9\-]+(?:\.[a-zA-Z0-9\-]+)*",
}
"""Where _PATTERNS has a stricter form: these miss no text in the format, and take others."""
NAMES = frozenset(_PATTERNS)
LONGEST = {"hostname": 253}
IRREGULAR = {
    "regex": "whether a text is a regular expression cannot be enforced",
    "uri-template": "URI templates are not enforced",
    "iri": "international identifiers are not enforced",
    "iri-reference": "international identifiers are not enforced",
    "idn-email": "international addresses are not enforced",
    "idn-hostname": "international host names are not enforced",
}


@cache
def expression(name: str) -> Expression:
    """Strings in that format, for one of NAMES: all of them, or a stricter form."""
    return found_by(f"^(?:{_PATTERNS[name]})$")


def wider(pattern: Expression) -> Expression:
    """For a format's stricter form one that misses none of the format; any other pattern itself."""
    return _wider_forms().get(pattern, pattern)


@cache
def _wider_forms() -> dict[Expression, Expression]:
    return {expression(name): found_by(f"^(?:{text})$") for name, text in _WIDER.items()}
