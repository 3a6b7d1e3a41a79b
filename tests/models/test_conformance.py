"""All adapters keep to what `check_model` checks; what only a vendor's wire can show is caught too."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.messages import ModelRequest, TextPart
from windlass.testing import ModelFailed, Scene, check_model

from .wires import ANTHROPIC, VENDORS, Vendor, make


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
async def test_an_adapter_keeps_to_the_contract(vendor: Vendor):
    report = await check_model(make(vendor))
    assert set(report.skipped) == vendor.cannot


class Forgetful:
    """An adapter that sends nothing back but text."""

    name = "forgetful"

    def __init__(self, model: Any) -> None:
        self.model = model

    async def reply(self, request: ModelRequest) -> Any:
        return await self.model.reply(plain(request))


def plain(request: ModelRequest) -> ModelRequest:
    messages = [
        message.replace(parts=tuple(part for part in message.parts if isinstance(part, TextPart)))
        for message in request.messages
    ]
    return request.replace(messages=messages)


async def test_an_adapter_that_does_not_send_back_what_is_signed_or_unknown_is_caught():
    played = make(ANTHROPIC)

    def forgetful(scene: Scene) -> Any:
        made = played(scene)
        return None if made is None else (Forgetful(made[0]), made[1])

    with pytest.raises(ModelFailed) as failed:
        await check_model(forgetful)
    assert set(failed.value.report.failed) == {"thinking", "unknown", "conversation", "picture"}
    assert "was not sent back to it" in failed.value.report.failed["unknown"]
