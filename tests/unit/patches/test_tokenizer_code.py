"""The tokenizer's own code is run where the user allows it."""

from __future__ import annotations

import pytest

from harness.patches import by_id
from harness.seams import recorded
from tests.unit.patches.contract import Contract
from tests.unit.patches.fakes import generator, handed


class TestContract(Contract):
    id = "tokenizer-code"


@pytest.mark.parametrize(("said", "allowed"), [("1", True), ("0", False), (None, False)])
def test_only_an_explicit_yes_allows_it(
    said: str | None, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_PATCHES_TRUST_REMOTE_CODE", raising=False)
    if said is not None:
        monkeypatch.setenv("HARNESS_PATCHES_TRUST_REMOTE_CODE", said)
    module = generator(recorded("0.16.0"))
    by_id("tokenizer-code").apply(handed(module))
    assert module.AutoTokenizer.from_pretrained("m") == (("m",), {"trust_remote_code": allowed})
