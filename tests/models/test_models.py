"""Models beyond what the notebook shows: hostile text, other architectures and tokenizers,
interrupted saves."""

import json
import random
import shutil

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers import models as token_models
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from humanlm.core.basics import HumanLMError
from humanlm.models import logps
from humanlm.models import prompts as prompting
from humanlm.models.checkpoints import (
    adapter_base,
    add_adapter,
    load_model,
    load_tokenizer,
    locate,
    make_model,
    save_model,
)
from humanlm.models.config import END, START, ModelConfig, ModelError, tiny_model, train_tokenizer
from humanlm.models.embeddings import Embedder
from humanlm.models.generation import cut_completion, generate
from humanlm.models.logps import token_logps
from humanlm.models.prompts import _segments, end_id, end_ids, render, render_target

TEXTS = [
    f"the {a} {b} is {c}"
    for a in ("night", "city", "river")
    for b in ("tram", "market", "bridge")
    for c in ("fine", "too loud", "late")
]
TAGS = ["<stance>", "</stance>", "<response>", "</response>"]
MARKERS = [START, END, "<|endoftext|>", "<think>", "</think>", "<name>", "</name>", *TAGS]


@pytest.fixture(scope="module")
def tok():
    return train_tokenizer(TEXTS * 5, 600, TAGS)


@pytest.fixture(scope="module")
def model(tok):
    torch.set_num_threads(1)
    return tiny_model(ModelConfig(hidden=64, mlp=96), tok)


def user(content, name=""):
    return {"role": "user", "name": name, "content": content}


def hostile(rng):
    pieces = [
        *MARKERS,
        "<b>",
        "&amp;",
        "\n",
        " ",
        "\x00",
        "ž馬🚋",
        "{{ m }}",
        "\ue0001\ue001",
        "{% raise %}",
        "the tram",
        "\u202e",
        "<|im_",
        "end|>",
    ]
    return "".join(rng.choices(pieces, k=rng.randrange(12)))


def test_hostile_text_never_becomes_markup(tok):
    rng, special = random.Random(0), set(tok.convert_tokens_to_ids(MARKERS))
    for _ in range(300):
        name, text = hostile(rng), hostile(rng)
        parts = _segments(
            tok, [{"role": "system", "content": text}, user(text, name)], speaker=name or "HUMAN"
        )
        assert not special & {i for s in parts if s.kind == "content" for i in s.ids}
        assert text.strip() + END in tok.decode([i for s in parts for i in s.ids])
        assert (
            not special & set(render_target(tok, text, end=False))
            and tok.decode(render_target(tok, text, False)) == text
        )


def _unigram():
    tok = Tokenizer(
        token_models.Unigram(
            [
                ("<unk>", 0.0),
                ("</s>", 0.0),
                ("a", -1.0),
                ("b", -1.0),
                ("<", -2.0),
                ("/", -2.0),
                ("s", -2.0),
                (">", -2.0),
            ],
            0,
        )
    )
    return tok


def _greedy_bpe():
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | {
        "</s>": 256,
        "ab": 257,
    }
    tok = Tokenizer(token_models.BPE(vocab=vocab, merges=[("a", "b")], ignore_merges=True))
    tok.decoder = decoders.ByteLevel()
    return tok


@pytest.mark.parametrize("make", [_unigram, _greedy_bpe])
def test_twin_of_other_tokenizers(make):
    backend = make()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    tok = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    tok.chat_template = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    ids = render(tok, [user("a</s>b")])
    assert ids.count(tok.eos_token_id) == 1 and ids[-1] == tok.eos_token_id == end_ids(tok)[0]


ARCHITECTURES = {
    "qwen2": lambda v: Qwen2Config(
        vocab_size=v,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    ),
    "llama": lambda v: LlamaConfig(
        vocab_size=v,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
    "gpt2": lambda v: GPT2Config(vocab_size=v, n_embd=32, n_layer=2, n_head=4, n_positions=128),
    "mistral": lambda v: MistralConfig(
        vocab_size=v,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=16,
    ),
    "gemma3": lambda v: Gemma3TextConfig(
        vocab_size=v,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_agree_with_transformers(tok, name):
    torch.manual_seed(0)
    net = AutoModelForCausalLM.from_config(ARCHITECTURES[name](len(tok))).eval()
    net.generation_config.eos_token_id = net.generation_config.pad_token_id = None
    prompts = [render(tok, [user(" ".join(TEXTS[:k]), "mila")]) for k in (1, 6, 3, 2, 1)]
    ours = generate(net, tok, prompts, max_tokens=[12, 3, 12, 7, 12], temperature=0)
    for prompt, c in zip(prompts, ours):
        full = net.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
        )
        assert c.ids == cut_completion(tok, full[0, len(prompt) :].tolist(), cap=len(c.ids)).ids
    with torch.no_grad():
        again = token_logps(net, prompts, [c.ids for c in ours], batch_tokens=2)
    for c, row in zip(ours, again.logps):
        assert row[: len(c.ids)].tolist() == pytest.approx(c.logps, abs=1e-3)


def simple_logps(model, prompts, completions, temperature):
    "One row at a time, all logits at once"
    for prompt, said in zip(prompts, completions):
        logits = model(torch.tensor([[*prompt, *said]])).logits[0].float() / temperature
        yield logits.log_softmax(-1)[
            torch.arange(len(prompt) - 1, len(prompt) + len(said) - 1), said
        ]


@pytest.mark.parametrize("pieces", [3, 10_000], ids=["in pieces", "at once"])
@pytest.mark.parametrize(
    "batch", [1, 64, 1 << 14], ids=["row by row", "small batches", "one batch"]
)
def test_logps_in_pieces_equal_those_of_all_logits_and_so_do_their_gradients(
    tok, model, monkeypatch, pieces, batch
):
    monkeypatch.setattr(logps, "_LOGITS", pieces * len(tok))
    rng = random.Random(3)
    rows = [
        (
            [rng.randrange(5, 300) for _ in range(rng.randrange(1, 30))],
            [rng.randrange(5, 300) for _ in range(rng.randrange(9))],
        )
        for _ in range(12)
    ]
    prompts, said = [p for p, _ in rows], [c for _, c in rows]
    found = token_logps(model, prompts, said, 0.7, batch)
    simple = list(simple_logps(model, prompts, said, 0.7))
    assert (
        found.mask.sum(1).tolist() == [len(c) for c in said] and not found.logps[~found.mask].any()
    )
    for row, mask, known in zip(found.logps, found.mask, simple):
        torch.testing.assert_close(row[mask], known, atol=1e-6, rtol=1e-6)
    ours, known = (
        torch.autograd.grad(x, list(model.parameters()))
        for x in (found.logps.sum(), sum(x.sum() for x in simple))
    )
    for a, b in zip(ours, known):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# ---- dialogues


@pytest.fixture(scope="module")
def chat():
    return train_tokenizer(TEXTS * 5, 600, TAGS, "chatml")


SAID = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "the tram is late"},
    {"role": "user", "content": "why?"},
]


@pytest.mark.parametrize(
    "written",
    ["the tram is late", "<think>\n\n</think>\n\nthe tram", "  late ", "the tram is late\n"],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_dialogue_goes_on_behind_the_tokens_that_were_written(chat, written, ended):
    prompt, ids = (
        render(chat, SAID[:1], "", None),
        render_target(chat, [{"type": "markup", "text": written}], end=ended),
    )
    whole = (
        prompt
        + ids
        + prompting.continuation(
            chat, [{"role": "tool", "content": "rain"}, SAID[2]], "", None, ended
        )
    )
    assert chat.decode(whole) == (
        f"{START}user\nhi{END}\n{START}assistant\n{written}{END}\n{START}tool\nrain{END}\n{START}user\nwhy?{END}\n"
        f"{START}assistant\n"
    )
    assert whole[: len(prompt + ids)] == prompt + ids and whole.count(end_id(chat)) == 4


def test_code_that_comes_with_a_model_is_never_run_even_where_somebody_says_yes(
    tok, model, tmp_path, monkeypatch
):
    folder = save_model(model, tok, tmp_path / "final")
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "code_of_theirs.Config"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code_of_theirs.py").write_text(
        f"open({str(tmp_path / 'it ran')!r}, 'w')\nfrom transformers import "
        "LlamaConfig\nclass Config(LlamaConfig): model_type = 'strange'\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ModelError, match="final"):
        load_model(folder)
    assert not (tmp_path / "it ran").exists()


# ---- adapters

LORA = ModelConfig(vocab=600, hidden=32, heads=2, kv_heads=2, mlp=64, lora_rank=4)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    "A small base, and the same with an adapter that is not zero"
    home = tmp_path_factory.mktemp("lora")
    model, tok = make_model(LORA, TEXTS * 5, TAGS)
    base = save_model(model, tok, home / "base")
    made = add_adapter(load_model(base, device="cpu").model, LORA, base)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.add_(0.1 * ("lora_B" in name))
    return made, tok, home


PROMPT = [{"role": "user", "name": "bo", "content": "the night tram is late"}]


def continuation(model, tok):
    return [c.ids for c in generate(model, tok, [render(tok, PROMPT)] * 3, 16, seed=[1, 2, 3])]


def test_an_adapter_is_saved_with_the_name_of_its_base_and_moves_with_it(adapted, tmp_path):
    model, tok, home = adapted
    folder = save_model(
        model, tok, home / "models" / "one", {"humanlm.json": "{}", "prompts/a.txt": "b"}
    )
    assert {"adapter_model.safetensors", "config.json", "humanlm.json"} < {
        p.name for p in folder.iterdir()
    } and not (folder / "README.md").exists()
    assert (
        json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "../../base"
    )
    assert (
        sum(p.stat().st_size for p in folder.glob("*.safetensors"))
        < (home / "base/model.safetensors").stat().st_size / 2
    )
    shutil.copytree(home, tmp_path / "elsewhere")
    moved = load_model(tmp_path / "elsewhere/models/one", device="cpu")
    assert adapter_base(tmp_path / "elsewhere/models/one") == str(
        (tmp_path / "elsewhere/base").resolve()
    )
    assert continuation(moved.model, tok) == continuation(model, tok)


def test_an_adapter_has_the_format_of_its_base_unless_it_is_trained_further(adapted):
    model, tok, home = adapted
    folder = save_model(model, tok, home / "models" / "two")
    asked, trained = (
        load_model(folder, "own", "bfloat16", "cpu", trains=trains).model
        for trains in (False, True)
    )
    assert {p.dtype for p in asked.parameters()} == {torch.bfloat16}
    kinds = {p.dtype for name, p in trained.named_parameters() if "lora_" in name}
    assert kinds == {torch.float32}
    assert {b.dtype for b in asked.buffers()} == {torch.float32}  # angles of positions


def test_weights_that_an_adapter_lacks_are_missed(adapted):
    from safetensors.torch import load_file, save_file

    model, tok, home = adapted
    folder = save_model(model, tok, home / "models" / "partial")
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        dict(list(weights.items())[2:]),
        folder / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(ModelError, match="Found missing adapter keys"):
        load_model(folder)


@pytest.mark.parametrize("name", ["runs/typo", "./runs/first", "~/typo", "a/b/c"])
def test_a_path_that_is_not_there_is_no_question_to_the_hub(tmp_path, monkeypatch, name):
    from humanlm.alignment.contract import how_to_ask
    from humanlm.models.local import HFClient

    monkeypatch.chdir(tmp_path)
    for load in (load_model, load_tokenizer, Embedder, how_to_ask, HFClient):
        with pytest.raises(HumanLMError, match="folder"):
            load(name)
    assert locate("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


# ---- no phrase twice (8.2 V11)


def banned(ids: list[int], n: int) -> bool:
    "Whether a run of n ids occurs twice"
    runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(runs)) < len(runs)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_nothing_visible_is_repeated_and_nothing_else_is_changed(model, tok, n):
    prompts = [
        render(tok, [user(text)])
        for text in ("the night tram is loud", "fine", "the night tram is loud")
    ]
    options = {"max_tokens": 80, "temperature": 0}
    free, kept = (
        generate(model, tok, prompts, **options),
        generate(model, tok, prompts, **options, no_repeat_ngram=n),
    )
    assert any(banned(c.ids, n) for c in free) and not any(banned(c.ids, n) for c in kept)
    for a, b in zip(free, kept):  # the same up to the first repetition
        first = next(
            i for i in range(len(a.ids) + 1) if i == len(a.ids) or banned(a.ids[: i + 1], n)
        )
        assert a.ids[:first] == b.ids[:first]
