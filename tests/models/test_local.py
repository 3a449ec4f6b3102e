"""Models in this process: batches, settings, bad input, sentence vectors. The chat model is tiny,
random and writes nonsense."""

import asyncio
import copy
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch: the models of this file run in this process")
import numpy as np

from humanlm.clients.client import chat_all
from humanlm.clients.protocol import chat
from humanlm.clients.reader import break_markers
from humanlm.clients.thoughts import without_thoughts
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.embeddings import MINILM, Embedder, has_minilm
from humanlm.models.local import HFClient

SMALL = ModelConfig(
    vocab=400, hidden=64, layers=1, heads=2, kv_heads=2, head_dim=32
)  # vLLM on CPU has no smaller heads
TEXTS = ["The night tram is worth its price after dark, and a levy on cars would pay for it."] * 20
needs_minilm = pytest.mark.skipif(
    not has_minilm(), reason=f"needs the small embedding model: {MINILM}"
)


class Watched(HFClient):
    "Remembers the sizes of its batches and how many were written at once"

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.sizes, self.writing, self.most = [], 0, 0

    def write(self, batch):
        self.sizes.append(len(batch))
        self.writing += 1
        self.most = max(self.most, self.writing)
        try:
            return super().write(batch)
        finally:
            self.writing -= 1


@pytest.fixture(scope="module")
def tiny():
    return make_model(SMALL, TEXTS)


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    return save_model(*tiny, tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(tiny):
    return Watched("tiny", tiny)


def ask(model, *requests):
    return asyncio.run(chat_all(model, requests))


def numbered(n, **settings):
    return [
        chat(f"Is tram {i} worth it?", seed=i, **{"max_tokens": 12} | settings) for i in range(n)
    ]


# ---- batches


def test_questions_share_few_batches_and_answers_do_not_depend_on_them(model):
    replies = ask(model, *numbered(200))
    assert len(model.sizes) <= 6 and sum(model.sizes) == 200, model.sizes
    alone = [ask(model, q)[0].text for q in numbered(200)[::50]]
    assert alone == [r.text for r in replies[::50]]
    assert len({r.text for r in replies}) > 150


# ---- settings


def test_a_stop_string_ends_the_answer_before_it(model):
    plain = ask(model, chat("hi", max_tokens=60, seed=4))[0]
    stop = plain.text[10:12]
    cut = ask(model, chat("hi", max_tokens=60, seed=4, stop=(stop, "never seen")))[0]
    assert cut.text == plain.text[: plain.text.index(stop)] and cut.finish == "stop"
    assert cut.usage.tokens_out < plain.usage.tokens_out


# ---- prompts


# ---- sentence vectors


def test_vectors_do_not_depend_on_their_company(folder):
    texts = [("word " * n + "end") for n in (1, 5, 40, 3, 200)]
    together, alone = (
        Embedder(folder)(texts),
        np.concatenate([Embedder(folder)([t]) for t in texts]),
    )
    assert together.shape == (5, 64) and together.dtype == np.float32
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


@needs_minilm
def test_the_small_model_knows_subjects_and_not_stances():
    embedder = Embedder("minilm")
    eats, *others = embedder(
        [
            "A man is eating food.",
            "A man is eating a piece of bread.",
            "A cheetah chases its prey.",
            "",
        ]
    )
    near = others @ eats
    assert near[0] > 0.7 and abs(near[1]) < 0.2 and np.isnan(near[2])
    worth, good, bad = embedder(
        ["The tram is worth it.", "The tram is a good idea.", "The tram is a bad idea."]
    )
    assert abs(worth @ good - worth @ bad) < 0.15
    bread, water = embedder(["A late tram. " * 90 + f"{end} " * 90 for end in ("Bread!", "Water!")])
    assert bread @ water < 0.98, "a long text is read to its end"


def test_a_local_model_goes_on_with_what_was_begun(model):
    whole = chat("Is tram 3 worth it?", max_tokens=12, temperature=0)
    (first,) = ask(model, whole)
    half = first.text[: len(first.text) // 2]
    ids = model.prompt_ids(replace(whole, prefill=half))
    assert (
        ids[: len(model.prompt_ids(whole))] == model.prompt_ids(whole)
        and model.tokenizer.decode(ids).endswith(half)
        and len(ids) > len(model.prompt_ids(whole))
    )
    strange = break_markers("tram <|im_end|>")
    (rest,) = ask(model, replace(whole, prefill=strange))
    assert model.prompt_ids(replace(whole, prefill=strange)).count(
        model.tokenizer.eos_token_id
    ) == model.prompt_ids(whole).count(model.tokenizer.eos_token_id)
    assert not rest.text.startswith(strange), "the reply holds what follows"


def test_a_model_that_always_thinks_says_where_its_thought_begins(tiny):
    tokenizer = copy.deepcopy(tiny.tokenizer)
    head = tokenizer.chat_template.partition("{%- if enable_thinking")[0]
    tokenizer.chat_template = head + "{{ '<think>\\n' }}{%- endif -%}"
    thinks = Watched("tiny", tiny._replace(tokenizer=tokenizer))
    (reply,) = ask(thinks, chat("Is tram 3 worth it?", max_tokens=4))
    assert reply.text.startswith("<think>") and not without_thoughts(reply.text)
    begun = chat("Is tram 3 worth it?", max_tokens=4, prefill="<think>no</think>")
    assert tokenizer.decode(thinks.prompt_ids(begun)).count("<think>") == 1
    (refused,) = ask(thinks, replace(begun, prefill="Yes, "))
    assert "always opens a thought" in str(refused)
