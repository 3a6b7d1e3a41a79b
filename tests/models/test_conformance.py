"""All adapters keep to what `check_model` checks, and so do the models of the testing kit."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.errors import ModelError
from windlass.testing import FunctionModel, ModelReport, Scene, ScriptedModel, breaks, check_model

from .wires import VENDORS, Vendor, make

STREAMED_ONLY = {"an early end", "an error in the stream", "a pause"}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_an_adapter_keeps_to_the_contract(vendor: Vendor):
    report = await check_model(make(vendor))
    assert set(report.skipped) == vendor.cannot
