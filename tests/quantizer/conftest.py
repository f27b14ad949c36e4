"""The folder of llama.cpp's own quantizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles import llama_quantize
from tests.tools.real_files import kept


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest) -> Path:
    """The folder of llama.cpp's shared objects."""
    with kept(request, f"llama-quantize-{llama_quantize.VERSION}") as cache:
        return llama_quantize.package(cache)
