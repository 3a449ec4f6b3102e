"""Training sets of contexts: what is kept, how it is split, what trainers get, and a model that is trained on them."""
import json
import math
import random
import re
import shutil
import subprocess
import sys
from contextlib import chdir

import pytest

from humanlm.benchmarks import contexts as records
from humanlm.benchmarks.sets import benchmarks
from humanlm.core.config import parse
from humanlm.core.runs import Stages, read_record
from humanlm.social.contexts import ContextLists, observation_scores, read_context, violations
from humanlm.core.basics import ConfigError, DataError, read_jsonl, run_sync, write_jsonl
from humanlm.models.client import ScriptedClient
from humanlm.models.weights import ModelConfig
from humanlm.parsers import (
    FRAMES, GROUPS, AllSeeing, Grade, Pair, ParserConfig, Run, all_seeing, belief_questions, build_model, completion,
    examine, exact, fault, fresh_pairs, grade, in_batches, knows_frames, lessons, main, make_sets, pieces, read_pair,
    read_pairs, record, report_table, run_stages, sift, split_pairs, story_key, summary, token_counter, written_form,
)
from humanlm.social.parsing import LLMParser, Parsed, parse_prompt, parser
from humanlm.social.stories import generate, hitom_rows, write_tomi
from humanlm.social.symbolic import read_story
from humanlm.tom import main as tom

PAIRS = list(fresh_pairs("tomi", 60, seed=7, compact_tags=True))
TINY = ["--model.layers", "1", "--model.hidden", "32", "--model.heads", "2", "--model.kv_heads", "2", "--model.mlp", "32"]


def same(a, b): return [(p.text, completion(p.context)) for p in a] == [(p.text, completion(p.context)) for p in b]
def stories(pairs): return {story_key(pair.text) for pair in pairs}


def result(pair, **more) -> dict:
    "A result file as published programs write them"
    return {"story": pair.text, "question": "Where?", "answer": "wrong", "socialized_context": pair.context.model_dump(), **more}


# ---- sources

def test_correctness_of_the_answer_does_not_matter_and_other_files_are_listed(tmp_path):
    for i, pair in enumerate(PAIRS[:4]): (tmp_path / f"{i}.json").write_text(json.dumps(result(pair, correct=False)))
    bad = {"list.json": "[1, 2]", "empty.json": "", "cut.json": '{"story": "Ada', "no-context.json": '{"story": "x", "question": "", "answer": ""}',
           "number.json": json.dumps(result(PAIRS[0]) | {"story": 3}), "odd.json": json.dumps(result(PAIRS[0]) | {"socialized_context": "none"})}
    for name, text in bad.items(): (tmp_path / name).write_text(text)
    found = read_pairs(tmp_path)
    assert same(found.pairs, PAIRS[:4])
    assert set(found.errors) == set(bad)
    assert "6 other files" in found._repr_markdown_() and found._repr_markdown_().count("\n- ") == 5


def test_generation_shape_and_the_stores_own_files_are_read(tmp_path):
    (tmp_path / "lists.json").write_text(json.dumps(result(PAIRS[0]) | {"socialized_context": json.loads(completion(PAIRS[0].context))}))
    store = parser("symbolic", folder=tmp_path / "store")
    run_sync(store(PAIRS[1].text, "tomi"))
    found = read_pairs(tmp_path)
    assert not found.errors and [pair.text for pair in found.pairs] == [PAIRS[0].text, PAIRS[1].text]
    assert found.pairs[0].context.steps == PAIRS[0].context.steps and found.pairs[1].task == "tomi"


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_what_tom_writes_feeds_the_parser_commands(family, tmp_path, capsys):
    file = {"tomi": "tomi.txt", "hitom": "hitom.jsonl"}[family]
    with chdir(tmp_path):
        assert tom(["generate", family, "--stories.n=12"]) == 0
        assert tom(["contexts", family, f"--tom.file=stories/{file}", "--tom.name=made"]) == 0
        for folder in ("stories/contexts", "runs/made/files"):
            found = read_pairs(folder)
            assert len(found.pairs) == 12 and not found.errors
            assert main(["data", "--parser.source", folder, "--parser.out", "sets"]) == 0
            assert len(read_jsonl(tmp_path / "sets/train.jsonl")) + len(read_jsonl(tmp_path / "sets/val.jsonl")) == 12
        assert main(["evaluate", "--parser.source", "runs/made", "--parser.names", "[symbolic,stories/contexts]", "--parser.results", "e.json"]) == 0
    reports = json.loads((tmp_path / "e.json").read_text())["reports"]
    assert [(found["stories"], found["means"]["f1"]["mean"], found["failures"]) for found in reports.values()] == [(12, 1, {})] * 2
    made = json.loads((tmp_path / "stories/contexts/tale-0.json").read_text())
    tale = next(generate(family, 1, 0))
    assert (made["question"], made["answer"]) == (tale.asked[0].text, tale.asked[0].answer)
    published = {json.loads(path.read_text())["answer"] for path in (tmp_path / "runs/made/files").glob("*.json")}
    assert published == {""}  # nobody was asked


def test_a_folder_without_results_is_not_blamed_on_the_grammar(tmp_path, capsys):
    (tmp_path / "odd.json").write_text('{"story": "Ada entered the barn."}')
    assert main(["evaluate", "--parser.source", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "odd.json" in told and "socialized_context" in told and "grammar" not in told
    (tmp_path / "odd.json").write_text(json.dumps(result(PAIRS[0]) | {"story": "Ada told a long tale."}))
    assert main(["evaluate", "--parser.source", str(tmp_path)]) == 2
    assert "grammar among 1" in capsys.readouterr().err


def test_both_families_work_without_further_settings(tmp_path, capsys):
    with chdir(tmp_path):
        for family in ("tomi", "hitom"):
            more = ["--parser.kind", family, "--parser.stories", "20"]
            assert main(["data", *more, "--parser.out", family]) == 0
            assert json.loads((tmp_path / family / "counts.json").read_text())["learnt"] == 18
            assert main(["evaluate", *more, "--parser.results", f"{family}.json"]) == 0
            assert json.loads((tmp_path / f"{family}.json").read_text())["reports"]["symbolic"]["stories"] == 2
        capsys.readouterr()
        limited = ["data", "--parser.kind", "hitom", "--parser.stories", "20", "--parser.out", "x", "--parser.max_tokens"]
        assert main([*limited, "100"]) == 2
        told = capsys.readouterr().err
        enough = int(re.search(r"--parser.max_tokens (\d+) takes all", told)[1])
        assert main([*limited, str(enough)]) == 0 and "too long" not in capsys.readouterr().out
        assert main([*limited, str(enough - 1)]) == 0 and "1 dropped, too long" in capsys.readouterr().out


@pytest.mark.parametrize("given, asked", [
    ({}, ("bare", False, 1)), ({"style": "full"}, ("full", False, 1)), ({"example": True}, ("bare", True, 1)), ({"tries": 2}, ("bare", False, 2)),
    ({"style": "bare", "example": False, "tries": 1}, ("bare", False, 1))])
def test_what_is_given_wins_over_what_a_trained_parser_wants(tmp_path, given, asked):
    (tmp_path / "parser.json").write_text('{"style": "bare", "example": false, "attempts": 1}')
    flags = [f"--parser.{name}={json.dumps(value) if name != 'style' else value}" for name, value in given.items()]
    config = parse({"parser": records.ParsingConfig}, [f"--parser.name=hf/{tmp_path}", *flags], "x").parser
    made = records.parser_of(config, str(tmp_path), ask=False).parser
    assert (made.style, made.example, made.attempts) == asked


def test_a_missing_folder_is_named():
    with pytest.raises(DataError, match="no folder"): read_pairs("nowhere")


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_fresh_contexts_are_exact_and_repeatable(family):
    some = list(fresh_pairs(family, 6, seed=3))
    assert same(some, fresh_pairs(family, 6, seed=3)) and not same(some, fresh_pairs(family, 6, seed=4))
    assert all(fault(pair, 1.0) == "" for pair in some)


# ---- what is kept

def test_invalid_wrong_repeated_and_long_pairs_are_dropped_with_reasons():
    lame = PAIRS[0].context.model_copy(deep=True)
    del lame.steps[1].observations[lame.agents[0]]
    wrong = PAIRS[1]._replace(context=all_seeing(PAIRS[1].context), name="wrong")
    limit = sorted(len(completion(pair.context)) for pair in PAIRS)[-2]
    found = sift([PAIRS[0]._replace(context=lame, name="lame"), wrong, *PAIRS, PAIRS[5]._replace(name="twice")], max_tokens=limit)
    assert len(found.kept) == len(PAIRS) - 1
    assert [(name, why.partition(":")[0]) for name, why in found.dropped if not name.startswith("tomi")] == \
        [("lame", "not valid"), ("wrong", "unlike the story"), ("twice", "repeated")]
    assert sum(why.startswith("too long") for _, why in found.dropped) == 1


def test_records_of_texts_outside_the_grammar_are_kept_when_valid():
    text = "Ada told a long tale, and Ben laughed until dusk."
    assert exact(text) is None
    assert fault(Pair(text, PAIRS[0].context)) == ""


def test_threshold_decides():
    thin = PAIRS[2].context.model_copy(deep=True)
    name = next(name for name, seen in thin.steps[2].observations.items() if seen != "none")
    thin.steps[2].observations[name] = "none"
    f1 = observation_scores(thin, exact(PAIRS[2].text)).f1
    assert 0 < f1 < 1
    assert fault(PAIRS[2]._replace(context=thin), f1 - 0.01) == "" and "F1" in fault(PAIRS[2]._replace(context=thin), f1 + 0.01)


@pytest.mark.parametrize("family", ["tomi", "hitom"])
def test_a_model_learns_from_texts_as_its_benchmark_gives_them(family, tmp_path):
    tales, path = list(generate(family, 6, 3)), tmp_path / {"tomi": "tomi.txt", "hitom": "hitom.jsonl"}[family]
    if family == "tomi":
        write_tomi(path, tales)
    else:
        write_jsonl(path, (row for n, tale in enumerate(tales) for row in hitom_rows(tale, n)))
    exam = benchmarks[family]
    asked = dict.fromkeys(exam.source_text(item) for item in exam.load(path).items)
    assert list(asked) == [pair.text for pair in fresh_pairs(family, 6, seed=3)]


def test_a_story_has_one_key_in_running_text_and_in_lines():
    lines = [f"{i} {line}" for i, line in enumerate(read_story(PAIRS[0].text).sentences, 1)]
    assert story_key(PAIRS[0].text) == story_key("\n".join(lines)) != story_key("\n".join(lines[:-1]))


# ---- the split (acceptance 12)

@pytest.mark.parametrize("seed", range(5))
def test_split_is_by_story_and_does_not_depend_on_the_order_of_input(seed):
    asked_often = [pair._replace(text=f"{text}", name=f"{pair.name} {n}") for pair in PAIRS for n, text in
                   enumerate((pair.text, "\n".join(f"{i} {line}" for i, line in enumerate(read_story(pair.text).sentences, 1))))]
    train, held = split_pairs(asked_often, 0.2, seed)
    assert not stories(train) & stories(held) and len(stories(held)) == math.ceil(len(stories(PAIRS)) * 0.2)
    random.Random(seed).shuffle(asked_often)
    again = split_pairs(asked_often, 0.2, seed)
    assert same(train, again[0]) and same(held, again[1])


def test_more_stories_move_few_of_the_others():
    small, large = split_pairs(PAIRS[:50], 0.2)[1], split_pairs(PAIRS, 0.2)[1]
    assert len(stories(small) - stories(large)) <= 4


def test_assistant_text_validates_against_the_generation_schema():
    for pair in PAIRS:
        row = record(pair)
        assert [message["role"] for message in row["prompt"] + row["completion"]] == ["user", "assistant"]
        text = row["completion"][0]["content"]
        ContextLists.model_validate_json(text)
        assert list(json.loads(text)) == ["agents_names", "socialized_context"]
        assert written_form(text) == (1.0, 1.0)
        assert not [v for v in violations(read_context(text)) if v.severity == "error"]


@pytest.mark.parametrize("style", ["full", "compact", "bare"])
def test_the_prompt_is_to_the_letter_what_a_parser_asks(style):
    client = ScriptedClient(lambda request: completion(PAIRS[0].context))
    found = run_sync(LLMParser(client, style=style, example=False)(PAIRS[0].text, "tomi"))
    assert client.requests[0].messages[-1]["content"] == record(PAIRS[0], style)["prompt"][0]["content"]
    assert found.context.steps == PAIRS[0].context.steps


# ---- what trainers get

def test_chat_jsonl_and_verl_parquet_hold_the_same(tmp_path):
    import pyarrow.parquet as pq
    with chdir(tmp_path):
        assert main(["data", "--parser.stories", "30", "--parser.held_out", "0.2", "--run.name", "x", "--parser.out", "sets", "--parser.indent", "2"]) == 0
    for name, count in (("train", 24), ("val", 6)):
        chats = read_jsonl(tmp_path / f"sets/{name}.jsonl")
        table = pq.read_table(tmp_path / f"sets/{name}.parquet").to_pylist()
        assert len(chats) == len(table) == count and list(table[0]) == ["prompt", "response", "row_id"]
        assert [[m["content"] for m in row["messages"]] for row in chats] == [[row["prompt"], row["response"]] for row in table]
        assert table[0]["response"].startswith('{\n  "agents_names"')
    assert json.loads((tmp_path / "sets/counts.json").read_text())["stories learnt"] == 24


def test_story_text_cannot_forge_the_form(tmp_path):
    hostile = PAIRS[0].context.model_copy(deep=True)
    hostile.steps[0].state = 'Ada wrote "],"actions":[" and <|im_end|> on the wall.'
    text = completion(hostile)
    assert "".join(part["text"] for part in pieces(text)) == text
    made = build_model(ModelConfig(layers=1, hidden=32, heads=2, kv_heads=2, mlp=32, vocab=700), [record(pair) for pair in PAIRS])
    from humanlm.models.weights import END, render_target
    ids = render_target(made.tokenizer, pieces(text))
    assert ids.count(made.tokenizer.convert_tokens_to_ids(END)) == 1 and ids[-1] == made.tokenizer.convert_tokens_to_ids(END)
    assert made.tokenizer.decode(ids[:-1]) == text
    assert len(ids) < 0.75 * len(render_target(made.tokenizer, text))


def test_rows_of_a_batch_are_of_like_length():
    lengths = [random.Random(i).randint(50, 90) for i in range(330)]
    waste = lambda found: sum(max(found[i:i + 16]) * len(found[i:i + 16]) for i in range(0, 330, 16)) / sum(found)
    ordered = in_batches(lengths, lengths, 16)
    assert waste(ordered) < 1.03 < 1.15 < waste(lengths)
    assert sorted(ordered) == sorted(lengths) and ordered != sorted(lengths)
    assert ordered == in_batches(lengths, lengths, 16) != in_batches(lengths, lengths, 16, seed=1)


# ---- grades

def test_the_exact_parser_is_perfect_and_the_careless_one_is_not():
    exactly, careless = (examine(p.name, p, PAIRS) for p in (parser("symbolic"), AllSeeing()))
    assert {key: value["mean"] for key, value in exactly.means().items()} == \
        dict(zip(Grade._fields, (1, 0, 1, 1, 1, 1, 1, 1)))
    means = {key: value["mean"] for key, value in careless.means().items()}
    assert means["recall"] == 1 and means["precision"] < 0.8 and means["memory"] < 0.9 and means["false_belief"] == 0


def test_every_order_of_belief_is_asked_and_answers_are_the_simulators():
    text = "Ada entered the barn.\nBen entered the barn.\nThe key is in the tin.\nBen exited the barn.\nAda moved the key to the jar."
    asked = {q.question.chain: (q.answer, q.real) for q in belief_questions(text)}
    assert asked == {("Ada",): ("jar", "jar"), ("Ben",): ("tin", "jar"), ("Ada", "Ben"): ("tin", "jar"), ("Ben", "Ada"): ("tin", "jar")}


def test_no_record_counts_as_zero_and_is_reported():
    texts = {pair.text: completion(pair.context) for pair in PAIRS[:4]}
    answer = lambda request: texts[request.messages[0]["content"].split('"""')[1].strip()]
    broken = lambda request: answer(request)[:200] if PAIRS[0].text in request.messages[0]["content"] else answer(request)
    report = examine("half", LLMParser(ScriptedClient(broken), style="bare"), PAIRS[:4])
    assert [g.valid for g in report.grades] == [0, 1, 1, 1] and report.means()["f1"]["mean"] == 0.75
    assert sum(report.failures.values()) == 1 and report.tokens > 0 and report.sample


@pytest.mark.parametrize("raw, valid, structural", [
    ("", 0, 0), ("I cannot do that.", 0, 0), ('{"agents_names": ["Ada"', 0, 0), ('{"agents_names": []}', 0, 0),
    ('{"agents_names": ["A"], "socialized_context": [{"timestep": "0", "state": "none", "observations": ["A: none"]}]}', 0, 0.6)])
def test_form_of_broken_answers(raw, valid, structural):
    assert written_form(raw) == (valid, pytest.approx(structural))


def test_mended_records_are_told_from_whole_ones():
    raw = json.loads(completion(PAIRS[0].context))
    raw["socialized_context"][0]["timestep"] = "7"
    found = run_sync(LLMParser(ScriptedClient([json.dumps(raw)]), style="bare")(PAIRS[0].text))
    graded = grade(found, PAIRS[0].text, PAIRS[0].context)
    assert graded.mended == 1 and graded.f1 == 1 and graded.structural < 1


def test_tables_show_missing_numbers_as_a_dash():
    rows = report_table({"a|b": summary(examine("x", parser("symbolic"), PAIRS[:2]))}).splitlines()
    assert len(rows) == 3 and "a|b" not in rows[2] and "–" in rows[2]


# ---- training and commands

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with chdir(folder):
        argv = ["train", "--run.name", "t", "--parser.stories", "40", "--parser.tested", "2", "--sft.batch", "4", "--parser.results", "r.json", *TINY]
        assert main(argv) == 0
    return folder, argv


def test_stories_that_are_too_long_for_the_model_are_refused_with_the_limit_that_helps(tmp_path, capsys):
    argv = ["train", "--run.name", "long", "--parser.kind", "hitom", "--parser.stories", "24", "--parser.tested", "1", "--sft.batch", "2", *TINY]
    with chdir(tmp_path):
        assert main(argv) == 2
        told = capsys.readouterr().err
        assert "than the 4,096 tokens" in told
        limit = re.search(r"(--parser.max_tokens) (\d+) (--fresh)", told).groups()
        assert main([*argv, *limit]) == 0


@pytest.mark.long
def test_results_are_complete(trained):
    folder, argv = trained
    found = json.loads((folder / "r.json").read_text())
    assert found["command"].startswith("python -m humanlm.parsers train --run.name t") and found["state"] == "finished"
    assert {"versions", "seed", "seconds", "data", "losses", "trainer", "reports", "settings", "parameters", "story"} <= found.keys()
    assert list(found["reports"]) == ["untrained", "trained", "all-seeing", "symbolic"]
    assert found["data"]["stories learnt"] == 36 and found["losses"][0][1] > found["losses"][-1][1]
    assert read_record(folder / "runs/t")["state"] == "finished"


@pytest.mark.long
def test_a_trained_model_is_a_parser_that_knows_how_to_be_asked(trained):
    folder, _ = trained
    asked = parser(f"hf/{folder}/runs/t/models/trained")
    assert [asked.style, asked.example, asked.attempts] == ["bare", False, 1]
    row = asked.request(PAIRS[0].text, "tomi")
    assert row.schema is None and row.messages[0]["content"] == parse_prompt(PAIRS[0].text, style="bare", example=False)
    assert 0 < row.max_tokens < 1500
    assert run_sync(asked(PAIRS[0].text, "tomi")).raw


@pytest.mark.long
def test_resume_goes_on_and_other_settings_are_refused(trained, capsys):
    folder, argv = trained
    with chdir(folder):
        assert main(argv) == 2
        assert main([*argv, "--resume"]) == 0
        assert main([*argv, "--resume", "--run.seed", "5"]) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_checkpoint(trained, tmp_path):
    folder, argv = trained
    shutil.copytree(folder / "runs/t", tmp_path / "runs/t")
    weights = (tmp_path / "runs/t/models/trained/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "runs/t/models/trained")
    for name in ("trained.json", "untrained.json"): (tmp_path / "runs/t/reports" / name).unlink()
    newest = max((tmp_path / "runs/t/checkpoints").glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    assert newest.exists()
    with chdir(tmp_path): assert main([*argv, "--resume"]) == 0
    assert (tmp_path / "runs/t/models/trained/model.safetensors").read_bytes() == weights


def test_dry_run_writes_nothing_and_loads_no_torch(tmp_path):
    code = ("import sys; from humanlm.parsers import main; assert main(['train', '--run.name', 'x', '--dry-run']) == 0; "
            "assert not {'torch', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert "57 steps of 48 rows" in out.stdout and not list(tmp_path.iterdir())


def test_evaluate_compares_parsers_by_name(tmp_path, capsys):
    with chdir(tmp_path):
        assert main(["evaluate", "--run.name", "x", "--parser.stories", "20", "--parser.names", "[symbolic]", "--parser.results", "e.json"]) == 0
    assert json.loads((tmp_path / "e.json").read_text())["reports"]["symbolic"]["means"]["f1"]["mean"] == 1
    assert "symbolic" in capsys.readouterr().out


def test_contexts_of_a_folder_are_graded_and_missing_ones_count(tmp_path):
    for name, pairs in (("some", PAIRS[:3]), ("all", PAIRS[:4])):
        (tmp_path / name).mkdir()
        for i, pair in enumerate(pairs): (tmp_path / f"{name}/{i}.json").write_text(json.dumps(result(pair)))
    with chdir(tmp_path):
        assert main(["evaluate", "--parser.source", "all", "--parser.names", "[some,all]", "--parser.results", "e.json"]) == 0
    reports = json.loads((tmp_path / "e.json").read_text())["reports"]
    assert [reports[name]["means"]["f1"]["mean"] for name in ("some", "all")] == [0.75, 1.0]
    assert list(reports["some"]["failures"].values()) == [1]


def test_only_training_can_be_resumed(tmp_path, capsys):
    with chdir(tmp_path): assert main(["evaluate", "--resume"]) == 2
    assert "keeps no run" in capsys.readouterr().err


def test_folders_can_be_the_source(tmp_path):
    (tmp_path / "files").mkdir()
    for i, pair in enumerate(PAIRS): (tmp_path / f"files/{i}.json").write_text(json.dumps(result(pair)))
    with chdir(tmp_path):
        assert main(["data", "--run.name", "x", "--parser.source", "files", "--parser.out", "sets"]) == 0
    assert len(read_jsonl(tmp_path / "sets/train.jsonl")) == 54


@pytest.mark.parametrize("argv, complaint", [
    (["trian"], "Did you mean"), (["data", "--parser.source", "nowhere"], "no folder"), (["data", "--parser.max_tokens", "5"], "usable contexts"),
    (["train", "--parser.style", "long"], "style"), (["train", "--parser.held_out", "1.5"], "held_out")])
def test_mistakes_are_explained(tmp_path, capsys, argv, complaint):
    more = ["--run.name", "x", "--parser.stories", "5"] if len(argv) > 1 else []
    with chdir(tmp_path): assert main([*argv, *more]) == 2
    assert complaint in capsys.readouterr().err
