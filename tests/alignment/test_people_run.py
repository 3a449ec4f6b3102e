"A run on people's chats: a cold start alone, a further model beside, and one table about people."

from dataclasses import replace

from humanlm.alignment.evaluation import load_evaluations
from humanlm.core.basics import write_jsonl
from humanlm.core.html import aligned
from humanlm.evaluation.dialogues import PEOPLE
from humanlm.evaluation.measured import AUC, BITS, bits_tables, load_measured, load_results
from humanlm.training.run import fit
from humanlm.worlds.mini import WorldConfig, make_world


def test_a_cold_start_alone_is_compared_with_people_and_a_model_beside(tmp_path, capsys):
    world = make_world(WorldConfig(users=60))
    rows = [replace(e, states=None) for e in world.examples]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings = {
        "run": {"name": "one", "out": str(tmp_path), "methods": []},
        "data": {"source": "examples", "path": str(path), "max_test": 40},
        "model": {"hidden": 32, "layers": 1, "mlp": 64, "vocab": 600},
        "hierarchy": {"levels": ["response"]},
        "sft": {"reply_steps": 60, "batch": 8},
        "judge": {"model": "rule"},
        "test_judge": {"model": "rule"},
        "eval": {"bits": 3, "texts": []},
    }
    first = fit(settings)
    place = str(first / "models" / "cold-start")
    beside = "one-cold-start"
    more = {"run": settings["run"] | {"name": "two"}}
    more["eval"] = settings["eval"] | {"beside": [place]}
    second = fit(settings | more)
    results = load_results(second / "results.json")
    own = {(r.model, r.metric): r.mean for r in results.rows if r.level == "all"}
    metric = f"{BITS}own"
    assert own[beside, metric] == own["cold-start", metric] < own["base", metric]
    assert 0.3 < own[PEOPLE, AUC] < 0.7
    table = bits_tables(results.rows)
    assert PEOPLE in table and "told apart" in table and "who of 3" in table.lower()
    assert max(map(len, aligned(table).splitlines())) <= 100
    assert (second / "evaluations" / f"{beside}.jsonl").is_file()
    chat = results.notes["example"]
    answers = load_evaluations(second / "evaluations" / "cold-start.jsonl")
    held_out = next(e for e in rows if e.id == answers[0].example_id)
    assert held_out.reply[:40] in chat and answers[0].texts["response"][:40] in chat
    assert chat in capsys.readouterr().out


def test_a_run_of_the_experiment_on_people_measures_its_thoughts(tmp_path):
    world = make_world(WorldConfig(users=30))
    path = write_jsonl(tmp_path / "rows.jsonl", [replace(e, states=None) for e in world.examples])
    folder = fit(
        {
            "run": {"recipe": "experiments.people:recipe", "out": str(tmp_path), "methods": []},
            "data": {"source": "examples", "path": str(path), "max_test": 4},
            "model": {"hidden": 32, "layers": 1, "mlp": 64, "vocab": 600},
            "hierarchy": {"prompt": "chat", "thinking": "hetero"},
            "sft": {"reply_steps": 40, "batch": 8},
            "judge": {"model": "likelihood"},
            "test_judge": {"model": "rule"},
            "eval": {"bits": 2, "texts": [], "reply_states": False},
        }
    )
    measured = load_measured(folder / "bits-2" / "cold-start.jsonl")
    assert {f"{BITS}own", f"{BITS}state_1", f"{BITS}state_8_other"} <= set(measured[0].values)
