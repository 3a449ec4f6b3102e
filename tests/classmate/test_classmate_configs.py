"The published settings are files, which say the published numbers."

import json
import re
from pathlib import Path

import pytest

from humanlm.classmate.tasks import load_tasks, prepare_command
from humanlm.models.checkpoints import make_model, save_model
from humanlm.models.config import ModelConfig
from humanlm.train import main as train
from humanlm.training.run import check_settings, max_steps, read_settings, updates

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "classmate"
FILES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "shared")
WARM_UP = (CONFIGS / "readme-warm-up.yaml").read_text()
WARM = "runs/classmate-readme-warm-up/models/classmate"
# what is asked in a step, the seed, updates a step, passes, rows, responses in all, steps between
# checkpoints
PUBLISHED = {
    "baseline": (16, 0, 1, 3, 8000, 192_000, 20),
    "classmate": (16, 0, 1, 3, 8000, 192_000, 20),
    "stealth": (16, 0, 1, 3, 8000, 192_000, 20),
    "readme-warm-up": (64, 42, 4, 2, 1000, 16_384, 5),
    "readme-baseline": (64, 42, 4, 3, 8000, 192_000, 10),
    "readme-classmate": (64, 42, 4, 3, 8000, 192_000, 10),
    "readme-self": (64, 42, 4, 3, 8000, 192_000, 10),
}
# estimator, condition, classmates, model
WHO = {
    "baseline": ("grpo", "no_classmate", ["initial"], "Qwen/Qwen3-0.6B"),
    "classmate": ("grpo_w_classmate", "always", ["initial"], "Qwen/Qwen3-0.6B"),
    "stealth": ("grpo_w_classmate", "always", ["initial"], "Qwen/Qwen3-0.6B"),
    "readme-warm-up": ("grpo", "no_classmate", ["initial"], "Qwen/Qwen3-0.6B"),
    "readme-baseline": ("grpo", "no_classmate", ["hf/Qwen/Qwen3-0.6B"], WARM),
    "readme-classmate": ("gdpo", "always", ["hf/Qwen/Qwen3-0.6B"], WARM),
    "readme-self": ("gdpo", "always", ["initial"], WARM),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    "A folder with prepared questions and the model of the warm-up, as a run leaves it"
    folder = tmp_path_factory.mktemp("published")
    rows = ({"instruction": f"Write about number {i}."} for i in range(10_400))
    (folder / "h4.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = next(line for line in WARM_UP.splitlines() if "humanlm data questions" in line)
    place = folder / "prepared" / "helpful_instructions"
    words = [*command.partition(" questions ")[2].split(), "--prepare.source", f"{folder}/h4.jsonl"]
    assert prepare_command([*words, "--prepare.out", str(place)]) == 0
    save_model(
        *make_model(
            ModelConfig(template="chatml", hidden=32, heads=2, kv_heads=2, mlp=64, vocab=420),
            ["some words"] * 9,
        ),
        folder / WARM,
    )
    return folder


def settings(name):
    return read_settings(["--config", str(CONFIGS / f"{name}.yaml")])


@pytest.mark.parametrize("name", FILES)
def test_a_file_says_the_published_numbers(name, home, monkeypatch):
    monkeypatch.chdir(home)
    recipe, s = settings(name)
    check_settings(recipe, s)
    prompts, seed, own, passes, rows, responses, save = PUBLISHED[name]
    assert (
        s.rollout.num_prompts,
        s.run.seed,
        updates(s),
        s.trainer["num_train_epochs"],
        s.tasks.train_n,
    ) == (prompts, seed, own, passes, rows)
    assert (
        max_steps(s, rows) / own * prompts * 8 == responses
        and s.trainer["save_steps"] == save * own
    ), "a checkpoint every so many steps, counted in updates"
    assert (
        s.classmate.estimator,
        s.classmate.use_classmate_condition,
        s.classmate.models,
        s.model.name,
    ) == WHO[name]
    assert (
        s.classmate.reward_type,
        s.classmate.reward_weight,
        s.classmate.placement,
        s.classmate.scale,
    ) == ("vanilla_reward", 1.0, "classmate_partial", False)
    assert s.classmate.keep == ("last-100-tokens" if name == "stealth" else "1") and (
        s.classmate.temperature,
        s.classmate.max_tokens,
        s.classmate.samples,
    ) == (1.0, 4096, 1)
    assert (
        s.rollout.group_size,
        s.rollout.temperature,
        s.rollout.top_p,
        s.rollout.eval_temperature,
        s.tasks.max_tokens,
        s.model.max_prompt_tokens,
    ) == (8, 1.0, 1.0, 1.0, 3072, 1024)
    assert s.tasks.toy == "" and s.sft.lesson_steps == 0


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("readme")])
def test_the_readme_stages_plan_as_shipped_and_have_their_questions(
    name, home, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)  # nothing is made yet
    assert train(["--config", str(CONFIGS / f"{name}.yaml"), "--dry-run"]) == 0
    lines = capsys.readouterr().out
    responses = PUBLISHED[name][5]
    assert f"{responses:,} in all" in lines
    heads = [WARM_UP, (CONFIGS / "shared.yaml").read_text()]
    (command,) = {re.search(r"python -m humanlm data questions.*\d", text)[0] for text in heads}
    assert f"not made yet      {command}\n" in lines, "one command makes the files of all stages"
    assert ("not trained yet" in lines) == (name != "readme-warm-up")
    assert "4 x h100" in lines and ": fits;" in lines
    monkeypatch.chdir(home)
    assert train(["--config", str(CONFIGS / f"{name}.yaml"), "--dry-run"]) == 0
    assert "not" not in (lines := capsys.readouterr().out) and f"{responses:,} in all" in lines
    tasks = load_tasks(settings(name)[1])
    roles = {tuple(m["role"] for m in task.messages) for task in tasks["train"]}
    assert roles == {("system", "user") if name == "readme-warm-up" else ("user",)}
    assert len(tasks["test"]) == settings(name)[1].tasks.test_n
