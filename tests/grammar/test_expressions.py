"""Regular expressions: what they match, told apart from another engine; sets of strings without a text of their own."""

from __future__ import annotations

import itertools

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.normalise import automaton, formats
from grammar.normalise import expression as rx
from grammar.normalise.parse import BadPattern, NotRegular
from grammar.normalise.search import found_by

TEXTS = ["".join(chars) for length in range(5) for chars in itertools.product("ab1", repeat=length)]

PATTERNS = [
    "", "a", "^a", "a$", "^a$", "^$", "^", "$", "a|b", "^a|b$", "(^a|b$)", "^(a|b)$", "a*", "^a*$", "^a+b?$",
    "^a{2}$", "^a{2,}$", "^a{1,2}$", "^(?:ab)*$", "[ab]", "^[^a]*$", "\\d", "^\\D*$", "^\\w+$", "^[\\w]$", "^.$",
    "^(?!a)", "^(?!.*b)[ab]+$", "(?=a)", "^(?=.*1)(?=.*a).{2,3}$", "(?<=a)b", "(?<!a)b$", "a(?!b)", "^(a|)b",
    "^(^a)?b", "a(?:$|b)", "(?:^|a)b", "a^b", "a$b", "^(?:a(?!b)|1)+?", "^[a-b1]{3}$", "^(?<name>a)b", "a{0}", "^a{0,2}?$",
    "[]", "^[^]$", "\\x61", "^\\u0061$", "^\\u{61}", "^[\\x61-\\u0062]$", "x{,2}", "a]", "a}", "^(?:(?:a|b){2}|1)$",
]  # fmt: skip


def reference(pattern: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({"pattern": pattern})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_find_what_another_engine_finds(pattern: str) -> None:
    try:
        expected = reference(pattern)
    except ValueError:
        pytest.skip("the other engine does not read it")
    try:
        expression = found_by(pattern)
    except NotRegular:
        assert pattern == "^(?:a(?!b)|1)+?"  # a lookahead that is repeated
        return
    matcher = automaton.Matcher(automaton.simplified(expression))
    for text in TEXTS:
        assert matcher(text) == expected.is_valid(text), text


@pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "^(?:a(?!b)|1)+?"])
def test_text_and_complement_mean_the_same_to_another_engine(pattern: str) -> None:
    expression = found_by(pattern)
    written = reference(rx.text_of(automaton.simplified(expression)))
    others = reference(rx.text_of(automaton.simplified(rx.Complement(expression))))
    matcher = automaton.Matcher(automaton.simplified(expression))
    for text in [*TEXTS, "é", "😀", "a\n", "\n", "\u2028", "\x7f", "]", "^", "-"]:
        assert written.is_valid(text) == matcher(text), text
        assert others.is_valid(text) != matcher(text), text


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "a{2,1}",
        "*",
        "a**",
        "+a",
        "^*",
        "\\",
        "[b-a]",
        "(?:",
        "\\x6",
        "\\u{110000}",
        "\\c1",
        "\\p",
    ],
)
def test_what_is_no_expression(pattern: str) -> None:
    with pytest.raises(BadPattern):
        found_by(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a)\\1", "\\ba", "(?i)a", "(?:^a)+", "(?=a)*", "\\k<n>", "\\A", "a{9999999}", "(" * 200 + ")" * 200],
)
def test_what_is_beyond_finite_automata_or_us(pattern: str) -> None:
    with pytest.raises(NotRegular):
        found_by(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^.$", "aé😀", "\n\r\u2028\u2029"),  # Rust's dot takes all but the first
        ("^\\s$", " \t\n\u00a0\ufeff\u2003", "\u0085a"),  # Rust's \s has \u0085 and not \ufeff
        ("^\\d$", "5", "\u0663a"),
        ("^\\w$", "a_9", "é"),
        ("^[&&a]$", "&a", "b"),  # in Rust an intersection
        ("^[+--]$", "+,-", "."),  # in Rust a difference
        ("^[a~~b]$", "a~b", "c"),
        ("^[[:alpha:]]$", "", "a"),
        ("^\\p{Lu}$", "", ""),
    ],
)
def test_ecmascript_is_meant(pattern: str, yes: str, no: str) -> None:
    expression = found_by(pattern)
    for char in yes:
        assert automaton.matches(expression, char)
    for char in no:
        assert not automaton.matches(expression, char)


def test_unicode_properties_are_written_but_not_decided() -> None:
    assert rx.text_of(found_by("^\\p{Lu}+$")) == "^\\p{Lu}+$"
    with pytest.raises(rx.TooLarge):
        automaton.matches(found_by("^\\p{Lu}"), "A")


@given(
    st.lists(st.text(alphabet="abé]^-\\", max_size=4), min_size=1, max_size=6),
    st.text("abé]^-\\", max_size=5),
)
def test_none_of_is_the_complement_of_any_of(words: list[str], text: str) -> None:
    assert automaton.matches(rx.none_of(words), text) == (text not in words)
    assert automaton.matches(rx.any_of(words), text) == (text in words)
    assert reference(rx.text_of(rx.none_of(words))).is_valid(text) == (text not in words)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("^a", "^b", True),
        ("^a", "a$", False),
        ("^x-", "^y-", True),
        ("^[0-9]+$", "^[a-z]+$", True),
        ("", "^$", False),
    ],
)
def test_disjoint(one: str, other: str, apart: bool) -> None:
    assert automaton.disjoint(found_by(one), found_by(other)) is apart


def test_bounds_hold() -> None:
    huge = found_by("^(?:a|b)*a(?:a|b){20}$")
    with pytest.raises(rx.TooLarge):
        automaton.simplified(rx.Complement(huge))
    with pytest.raises(rx.TooLarge):
        automaton.matches(found_by("^(?:[ab]{1,1000}){1,1000}$"), "a")
    with pytest.raises(rx.TooLarge):
        rx.none_of(["a" * 5000])


FORMATS = {
    "date": ["2024-02-29", "2023-02-29", "2000-02-29", "1900-02-29", "2024-12-31", "2024-04-31", "2024-1-1", "0000-01-01"],
    "time": ["12:00:00Z", "23:59:60Z", "22:59:60Z", "12:00:00", "24:00:00Z", "12:00:00.123+23:59", "12:00:00+24:00"],
    "date-time": ["2024-02-29T12:00:00Z", "2024-02-29t12:00:00z", "2024-02-29 12:00:00Z", "1998-12-31T23:59:60Z"],
    "duration": ["P1Y", "P1Y2M3D", "P1Y3D", "PT1H", "PT1H1S", "P1W", "P", "PT", "P1DT1H", "P1.5D", "P2W1D"],
    "email": ["a@b", "a.b@c.d", "a..b@c.d", '"a b"@c.d', "a@[127.0.0.1]", "a@[IPv6:::1]", "a@-b.c", ".a@b.c", "@b"],
    "hostname": ["a", "a.b", "-a", "a-", "a" * 63, "a" * 64, "a_b", "a..b", "a.", "1.2.3.4", "ab--cd", "a-b"],
    "ipv4": ["1.2.3.4", "256.1.1.1", "01.2.3.4", "1.2.3"],
    "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::1.2.3.4", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9", "fe80::a%e"],
    "uuid": ["2EB8AA08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"],
    "uri": ["http://a.b/c?d#e", "a:", "//a", "http://a b", "http://[::1]/", "http://a/%zz", "http://a|b", "mailto:a@b"],
    "uri-reference": ["", "a", "/a", "#a", "//a.b", "?q", "a b", "\\a", "a/b:c", ":a"],
    "json-pointer": ["", "/a", "/a~0", "/a~2", "a", "/a\nb", "//", "/~"],
    "relative-json-pointer": ["0", "0#", "1/a", "01", "-1", "/a", "0##"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(formats.NAMES))
def test_formats_are_what_the_validator_takes(name: str) -> None:
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    for text in FORMATS[name]:
        assert automaton.matches(formats.expression(name), text) == validator.is_valid(text), text


STRICTER = {
    "date-time": ["2016-12-31T18:59:60-05:00", "2024-02-29T12:00:00.1234567890Z"],
    "time": ["18:59:60-05:00", "00:59:60.5+01:00", "12:00:00.1234567890Z"],
    "email": ["a" * 40 + ".b@x", '"' + "a" * 60 + '"@x', '"\t"@x', "a@xn--bcher-kva", "a@" + ".".join(["b" * 21] * 4)],
    "hostname": ["xn--bcher-kva", "a.xn--bcher-kva"],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STRICTER))
def test_where_a_format_has_a_stricter_form_the_wider_one_misses_nothing(name: str) -> None:
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    form = formats.expression(name)
    wider = formats.wider(form)
    for text in STRICTER[name]:
        assert validator.is_valid(text)
        assert not automaton.matches(form, text)
    for text in [text for texts in (FORMATS[name], STRICTER[name]) for text in texts]:
        assert automaton.matches(wider, text) or not validator.is_valid(text)
    assert formats.wider(wider) == wider


def test_formats_without_a_stricter_form_are_as_wide_as_they_are() -> None:
    for name in formats.NAMES - STRICTER.keys():
        form = formats.expression(name)
        assert formats.wider(form) == form
