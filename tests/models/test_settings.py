"""Every group of settings that reaches a chat model has one base, one budget and one way to say
what is wrong."""

import pytest

from humanlm.models.settings import estimate


def test_an_unknown_price_stays_unknown_and_a_small_one_is_not_shown_as_free():
    small, unknown = estimate("openai/gpt-5-mini", 1, 400, 50), estimate("vllm/own", 1, 400, 50)
    assert str(
        small
    ) == "1 calls, ~400 tokens read, ~50 written, ~$0.0002" and small.dollars == pytest.approx(
        0.0002
    )
    assert unknown.dollars is None and "price unknown" in str(unknown)
