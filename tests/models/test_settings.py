"""Every group of settings that reaches a chat model has one base, one budget and one way to say
what is wrong."""

import pytest

from humanlm.clients.limits import Limits
from humanlm.clients.protocol import LLMError
from humanlm.core.basics import ConfigError
from humanlm.models.settings import ClientConfig, Estimate, add_up, estimate


def test_every_setting_reaches_the_client(tmp_path):
    c = ClientConfig(
        concurrency=5,
        timeout=7.0,
        attempts=2,
        cache=str(tmp_path),
        budget=3.0,
    )
    client = c.client("scripted/echo")
    assert client.limits == Limits(5, 7.0, 2)
    assert (
        client.ledger.budget == 3.0
        and client.cache is not None
        and c.client("scripted/echo", client.ledger).ledger is client.ledger
    )
    with pytest.raises(ConfigError, match="has no address"):
        ClientConfig(base_url="http://127.0.0.1:9/v1").client("scripted/echo")
    with pytest.raises(LLMError, match="unknown model|No provider"):
        c.client("nobody/x")


def test_an_unknown_price_stays_unknown_and_a_small_one_is_not_shown_as_free():
    small, unknown = estimate("openai/gpt-5-mini", 1, 400, 50), estimate("vllm/own", 1, 400, 50)
    assert str(
        small
    ) == "1 calls, ~400 tokens read, ~50 written, ~$0.0002" and small.dollars == pytest.approx(
        0.0002
    )
    assert add_up([small, small]) == Estimate(2, 800, 100, pytest.approx(2 * small.dollars))
    assert (
        unknown.dollars is None
        and add_up([small, unknown]).dollars is None
        and "price unknown" in str(unknown)
    )
