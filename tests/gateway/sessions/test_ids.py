from __future__ import annotations

import itertools

import pytest

from gateway.known_ids import pack_ids, unpack_ids
from gateway.sessions.ids import is_id, new_id


def test_names_are_in_the_order_of_time() -> None:
    made = [new_id("resp", lambda now=now: now) for now in (1.0, 2.0, 1e9, 1.8e9, 4e9)]
    assert made == sorted(made)
    assert all(is_id("resp", name) for name in made)
    assert len({new_id("resp", lambda: 1.0) for _ in range(1000)}) == 1000


@pytest.mark.parametrize("text", ["", "resp_", "resp_" + "g" * 32, "conv_" + "0" * 32, "resp_" + "0" * 33])
def test_what_cannot_be_a_name_is_told(text: str) -> None:
    assert not is_id("resp", text)


def test_ids_come_back() -> None:
    for ids in itertools.chain([[]], ([0], [1, 2**32 - 1])):
        assert list(unpack_ids(pack_ids(ids))) == ids
    with pytest.raises(ValueError, match="not a multiple"):
        unpack_ids(b"abc")
