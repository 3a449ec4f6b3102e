"""How many functions of the package one example passes, from its line to its gradient."""

import sys
import threading
from collections import Counter
from pathlib import Path

import humanlm
from humanlm.alignment.grpo import alignment_method
from humanlm.alignment.modes import training_rows
from humanlm.core.records import load_examples
from humanlm.models.checkpoints import make_model
from humanlm.rewards.judges import RuleJudge
from humanlm.training.rollouts import sft_row
from humanlm.training.run import read_settings
from humanlm.training.sampling import SFTConfig
from humanlm.training.sft import train_sft
from humanlm.training.trainer import MethodTrainer, trainer_args

ROOT = Path(humanlm.__file__).parent
SETTINGS = [
    "--hierarchy.levels=[stance,response]",
    "--hierarchy.state_tokens=24",
    "--judge.model=rule",
    *("--model.vocab=400", "--model.hidden=64", "--model.mlp=64"),
    *("--model.heads=2", "--model.kv_heads=2"),
]
MOST, MOST_OF_TRAINING = 235, 49


def test_one_example_passes_few_functions(tmp_path):
    _, s = read_settings(SETTINGS)
    names: set[tuple[str, str]] = set()

    def note(frame, event, _):
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents and not code.co_name.startswith("<"):
            names.add((str(path.relative_to(ROOT)), code.co_qualname))

    def watch(on):
        sys.setprofile(note if on else None)
        threading.setprofile(note if on else None)

    watch(True)
    example = load_examples(ROOT / "fixtures" / "sample.jsonl")[0]
    rows = training_rows([example], s.hierarchy, "humanlm")[:1]
    method = alignment_method(s, RuleJudge(), rows, [example], "humanlm")
    watch(False)
    tags, stances = ["<stance>", "</stance>"], ["loves it", "is against it", "has no opinion"]
    made = make_model(s.model, [example.reply, *stances] * 9, tags)
    lessons = [sft_row(rows[0]["prompt"], text.join(tags), False) for text in stances]
    train_sft(*made, lessons * 60, SFTConfig(batch=6), tmp_path / "lessons")
    args = trainer_args({"learning_rate": 1e-3, "save_strategy": "no"}, tmp_path, 1, 8, 1, 24)
    trainer = MethodTrainer(*made, method, rows, args, tmp_path / "trajectories")
    watch(True)
    trainer.train()
    watch(False)
    print([(t.text, t.parse_status, t.rewards, t.scores) for t in trainer.trajectories][:4])
    print(*(" ".join(name) for name in sorted(names)), sep="\n")
    print(Counter(path.split("/")[0] for path, _ in names).most_common(), len(names))
    assert any(t.scores["stance"].judge == "rule" for t in trainer.trajectories)
    assert trainer.state.log_history[0]["grad_norm"] > 0
    assert len(names) <= MOST
    assert sum(path.startswith("training/") for path, _ in names) <= MOST_OF_TRAINING
