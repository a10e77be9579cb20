"""Random schemas and values that have much to do with each other: few names, few values, all keywords."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "b", "ab", "x1")
TEXTS = ("", "a", "b", "ab", "ba", "abc", "x1", "12", "a b", "é")
NUMBERS = (-2, -1, 0, 1, 2, 3, 4, 5, 0.5, 1.5, 2.25, -0.5, 100)
PATTERNS = ("^a", "b$", "a", "^[ab]+$", "^x|b$", "^(?!a)", "[0-9]", "^$", ".")
TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")

scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(TEXTS))
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)


def _assertions(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    small = st.integers(0, 3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    listed = st.lists(inner, min_size=1, max_size=3)
    names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
    return {
        "type": st.one_of(
            st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)
        ),
        "enum": st.lists(values, min_size=1, max_size=4),
        "const": values,
        "minimum": st.sampled_from(NUMBERS),
        "maximum": st.sampled_from(NUMBERS),
        "exclusiveMinimum": st.sampled_from(NUMBERS),
        "exclusiveMaximum": st.sampled_from(NUMBERS),
        "multipleOf": st.sampled_from((1, 2, 3, 0.5, 0.25, 1.5)),
        "minLength": small,
        "maxLength": small,
        "pattern": st.sampled_from(PATTERNS),
        "prefixItems": listed,
        "items": inner,
        "minItems": small,
        "maxItems": small,
        "contains": inner,
        "minContains": small,
        "maxContains": small,
        "uniqueItems": st.booleans(),
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "additionalProperties": inner,
        "required": names,
        "minProperties": small,
        "maxProperties": small,
        "propertyNames": inner,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": named,
        "allOf": listed,
        "anyOf": listed,
        "oneOf": listed,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "$ref": st.sampled_from(("#/$defs/one", "#/$defs/two")),
    }


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    assertions = _assertions(inner)
    return st.lists(st.sampled_from(sorted(assertions)), min_size=1, max_size=4, unique=True).flatmap(
        lambda keywords: st.fixed_dictionaries({keyword: assertions[keyword] for keyword in keywords})
    )


_inner: st.SearchStrategy[Any] = st.recursive(st.one_of(st.booleans(), st.just({})), _objects, max_leaves=6)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """With two definitions, which may refer to themselves and each other."""
    root = draw(_objects(_inner))
    return {**root, "$defs": {"one": draw(_inner), "two": draw(_inner)}}
