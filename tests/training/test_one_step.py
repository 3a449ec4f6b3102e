"""How many functions of the package one example passes, from its line to its gradient."""

import copy
import sys
import threading
from pathlib import Path

import humanlm
from humanlm.alignment.grpo import alignment_method
from humanlm.alignment.modes import training_rows
from humanlm.core.records import load_examples
from humanlm.models.checkpoints import make_model
from humanlm.rewards.judges import RuleJudge
from humanlm.training.options import trainer_args
from humanlm.training.run import read_settings
from humanlm.training.sft import train_sft
from humanlm.training.rollouts import sft_row
from humanlm.training.trainer import MethodTrainer
from humanlm.core.config import SFTConfig

ROOT = str(Path(humanlm.__file__).parent)
FLAGS = ["--run.methods=[humanlm]", "--hierarchy.levels=[stance,response]", "--hierarchy.state_tokens=8",
  "--hierarchy.response_tokens=8", "--judge.model=rule", "--model.vocab=400", "--model.hidden=32", "--model.heads=2", "--model.kv_heads=2", "--model.mlp=64"]


def test_one_example_passes_few_functions(tmp_path):
    _, s = read_settings(FLAGS)
    path = Path(ROOT) / "fixtures" / "sample.jsonl"
    examples = load_examples(path)[:2]
    made = make_model(s.model, [t for e in examples for t in (e.reply, e.persona.text)] , [])
    rows = training_rows(examples, s.hierarchy, "humanlm")
    lessons = [sft_row(row["prompt"], f"<{row['level']}>likes bees</{row['level']}>", False) for row in rows] * 40
    train_sft(*made, lessons, SFTConfig(batch=8), tmp_path / "sft")
    passed = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            passed.add(f"{Path(code.co_filename).relative_to(ROOT)}: {code.co_qualname}")

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        examples = load_examples(path)[:2]
        rows = [row for row in training_rows(examples, s.hierarchy, "humanlm") if row["level"] == "stance"]
        method = alignment_method(s, RuleJudge(), rows, examples, "humanlm")
        sys.setprofile(None); threading.setprofile(None)
        args = trainer_args({"learning_rate": 1e-3, "save_strategy": "no"}, tmp_path, 2, 4, 1, 16)
        trainer = MethodTrainer(*made, method, rows[:2], args, tmp_path / "trajectories")
        threading.setprofile(note); sys.setprofile(note)
        trainer.train()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    print(*sorted(passed), sep="\n")
    print(len(passed), trainer.state.log_history, [t.text for t in trainer.trajectories], trainer.trajectories[0].scores)
    assert len(passed) <= 10
