"""The setting must be in the environment before torch's runtime is loaded, so each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import os, sys
from engine.openmp import shorten_spinning
shorten_spinning()
assert "torch" not in sys.modules
print(os.environ["GOMP_SPINCOUNT"])
"""


@pytest.mark.parametrize(("operators", "expected"), [(None, "4000"), ("123", "123")])
def test_spinning_is_short_unless_the_operator_says_otherwise(operators: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    if operators is not None:
        environment["GOMP_SPINCOUNT"] = operators
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == expected
