"A chat that learns: what is learned from, what goes back, what is written, and what happens when it is stopped."

import itertools
import json
import signal
import time
from dataclasses import replace

import pytest
import torch
import warm
from pages import HOSTILE, read

from humanlm.core.basics import ConfigError, read_jsonl
from humanlm.models.checkpoints import load_model, make_model
from humanlm.models.config import ModelConfig
from humanlm.sdpo.chat import LiveWidget, _converse, _signal_text, _spoken_plainly, chat_command
from humanlm.sdpo.hindsight import Followup, read_interactions
from humanlm.sdpo.live import PENDING, RECORD, SAVED, LiveChat, LiveConfig, LiveLog, LiveSignal
from humanlm.sdpo.method import signals
from humanlm.training.run import quiet_libraries

quiet_libraries()
TEXTS = [
    "Hello there, what do you want to know?",
    "Shorter, please. Tell me more about tea and bread.",
    "user",
    "assistant",
    "system",
]
SMALL = ModelConfig(template="chatml", vocab=340, hidden=32, layers=1, heads=2, kv_heads=2, mlp=64)
QUICK = LiveConfig(learning_rate=1e-3, max_tokens=10, undo=2)
SAID = ["Hello there", "Shorter, please", "Tell me more", "Tea and bread"]


@pytest.fixture
def chat(tmp_path):
    return new_chat(tmp_path)


def new_chat(folder=None, saved=(), loaded=None, sdpo=LiveSignal(), start=None, **config):
    return LiveChat(
        loaded or make_model(SMALL, TEXTS),
        replace(QUICK, **config),
        sdpo=sdpo,
        log=LiveLog(folder, saved),
        start=start,
    )


def weights(chat):
    return [p.detach().clone() for p in chat.loaded.model.parameters()]


def numbers(chat):
    return [each for part in chat.trainer.keep().numbers for each in part.values()]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


# ---- what is learned from


def test_the_message_after_an_answer_teaches_and_not_the_one_before(chat):
    for text in SAID[:3]:
        chat.say(text)
    rows = read_interactions(chat.log.folder / RECORD)
    assert [(r.messages[-1]["content"], r.followup.text, r.followup.source) for r in rows] == [
        (a, b, "live") for a, b in itertools.pairwise(SAID)
    ]
    assert [r.completion.text for r in rows] == [
        m["content"] for m in chat.history.messages if m["role"] == "assistant"
    ][:2]

    def after(followup):
        other = new_chat()
        other.say(SAID[0])
        assert other.pending.completion.token_ids == rows[0].completion.token_ids
        other.learn(followup)
        return weights(other)

    first = new_chat()
    first.say(SAID[0])
    first.say(SAID[1])
    assert same(weights(first), after(SAID[1])) and not same(weights(first), after(SAID[0])), (
        "the completed triple, not the message before the answer"
    )


def test_the_update_comes_before_the_next_answer(chat):
    chat.say(SAID[0])
    chat.say(SAID[1])
    told = chat.pending.completion
    late = new_chat()
    late.say(SAID[0])
    late.pending = None  # nothing to learn from
    late.say(SAID[1])
    assert list(late.pending.messages) == chat.history.messages[:3]
    assert late.pending.completion.logprobs != told.logprobs, "the answer is one of the new weights"


def test_ids_are_those_that_were_drawn(chat):
    chat.say(SAID[0])
    drawn = chat.pending.completion.token_ids
    chat.say(SAID[1])
    trained = chat.trainer.trainer.trajectories[0]
    assert (
        tuple(trained.completion_ids) == drawn
        and chat.log.lessons[0].interaction.completion.token_ids == drawn
    )


def test_a_conversation_is_seen_through_a_window(tmp_path):
    chat = new_chat(tmp_path, window=4, system="Be kind.", steps=1)
    for text in SAID:
        chat.say(text)
    seen = chat.pending.messages
    assert [m["role"] for m in seen] == ["system", "user", "assistant", "user"] and seen[-1][
        "content"
    ] == SAID[-1]


@pytest.mark.parametrize(
    "text, reason", [(" \n", "empty follow-up"), ("no " * 300, "follow-up too long")]
)
def test_what_teaches_nothing_changes_nothing_and_says_why(chat, text, reason):
    chat.say(SAID[0])
    chat.say(SAID[1])
    before, held = weights(chat), numbers(chat)
    lesson = chat.say(text).lesson
    assert (
        str(lesson) == f"nothing learned: {reason}"
        and same(weights(chat), before)
        and same(numbers(chat), held)
    )
    assert (reason == "empty follow-up") == (
        chat.history.messages[-1]["content"] == chat.pending.completion.text
        and len(chat.log.lessons) == 1
    )


def test_an_answer_of_an_end_token_alone_teaches_nothing(chat):
    chat.say(SAID[0])
    chat.pending = replace(
        chat.pending,
        completion=replace(
            chat.pending.completion,
            text="",
            token_ids=chat.pending.completion.token_ids[:1],
            logprobs=None,
        ),
    )
    before = weights(chat)
    assert chat.learn(SAID[1]).reason == "empty reply" and same(weights(chat), before)


@pytest.mark.parametrize("form", ["sampled", "topk", "full"])
def test_the_signal_that_is_kept_is_the_one_of_the_weights_before(form):
    chat = new_chat(sdpo=LiveSignal(form), steps=2)
    chat.say(SAID[0])
    before = [p.detach().clone() for p in chat.loaded.model.parameters()]
    asked = replace(chat.pending, followup=Followup(SAID[1]))
    expected = signals(*chat.loaded, [asked])[0].advantage
    lesson = chat.learn(SAID[1])
    assert lesson.signal == pytest.approx(expected, abs=1e-5) and not same(before, weights(chat))
    assert (
        lesson.interaction.learned["signal"]
        == pytest.approx(sum(expected) / len(expected), abs=1e-5)
        and lesson.interaction.learned["steps"] == 2
    )


@pytest.mark.parametrize(
    "wrong", [{"teacher": "ema"}, {"contrast": "shuffled"}, {"kl": 0.1}, {"score_empty": True}]
)
def test_what_a_chat_cannot_keep_is_refused(wrong):
    with pytest.raises(ConfigError, match="a chat"):
        LiveSignal(**wrong)


# ---- back


def test_undo_restores_weights_and_optimiser_bit_for_bit(chat):
    chat.say(SAID[0])
    at = [(weights(chat), numbers(chat))]
    for text in SAID[1:]:
        chat.say(text)
        at.append((weights(chat), numbers(chat)))
    for then in (at[2], at[1]):
        assert not same(weights(chat), then[0]) and chat.undo() == 1
        assert same(weights(chat), then[0]) and same(numbers(chat), then[1])
    assert chat.undo() == 0 and same(weights(chat), at[1][0]), "two steps are kept"
    assert [r.filters for r in read_interactions(chat.log.folder / RECORD)] == [
        (),
        ("undone",),
        ("undone",),
    ]
    assert len(chat.trainer.past) == 0


def test_the_first_lesson_can_be_undone_and_learned_again(chat):
    chat.say(SAID[0])
    before = weights(chat)
    chat.learn(SAID[1])
    once = weights(chat)
    chat.undo()
    assert same(weights(chat), before) and numbers(chat) == []
    chat.trainer.learn(chat.trainer.trainer.rows[0])
    assert same(weights(chat), once)


def test_what_interrupts_a_lesson_leaves_the_weights_as_they_were(chat):
    from transformers import TrainerCallback

    class Stops(TrainerCallback):
        def on_step_end(self, *_, **__):
            raise KeyboardInterrupt

    chat.say(SAID[0])
    chat.say(SAID[1])
    before, held, record = weights(chat), numbers(chat), (chat.log.folder / RECORD).read_text()
    chat.trainer.trainer.add_callback(Stops)
    with pytest.raises(KeyboardInterrupt):
        chat.say(SAID[2])
    assert (
        same(weights(chat), before)
        and same(numbers(chat), held)
        and (chat.log.folder / RECORD).read_text() == record
    )
    chat.trainer.trainer.remove_callback(Stops)
    assert not chat.say(SAID[2]).lesson.reason, "the same message can be said again"


# ---- on disk


@pytest.mark.parametrize(
    "every, teacher", [(1, "live"), (2, "live"), (10, "live"), (2, "frozen"), (2, "trust")]
)
def test_a_killed_chat_goes_on_as_if_nothing_had_happened(tmp_path, every, teacher):
    sdpo = LiveSignal(teacher=teacher)
    chat = new_chat(tmp_path, save_every=every, sdpo=sdpo)
    for text in SAID:
        chat.say(text)
    chat.undo()  # then the process is killed
    place = tmp_path / SAVED
    held = json.loads((place / "live.json").read_text())["learned"] if place.exists() else []
    assert len(held) == {1: 2, 2: 2, 10: 0}[every] and held == chat.log.learned[: len(held)]
    again = new_chat(
        tmp_path,
        held,
        load_model(place, "own") if held else None,
        sdpo,
        make_model(SMALL, TEXTS),
        save_every=every,
    )
    assert same(weights(again), weights(chat)) and same(numbers(again), numbers(chat))
    assert (
        again.history.messages[-3:] == chat.history.messages[-3:] and again.pending == chat.pending
    )
    assert again.say("More").answer == chat.say("More").answer and same(
        weights(again), weights(chat)
    )


def test_a_chat_that_was_killed_before_it_answered_answers_first(chat):
    chat.say(SAID[0])
    chat.learn(SAID[1])  # and then it is killed
    again = new_chat(chat.log.folder)
    assert again.pending is None and again.history.messages[-1] == {
        "role": "user",
        "content": SAID[1],
    }
    _converse(again, lambda question: None)
    assert (
        again.history.messages[-1]["role"] == "assistant"
        and again.pending.messages[-1]["content"] == SAID[1]
    )
    assert json.loads((chat.log.folder / PENDING).read_text())["id"] == "live_000001"


def test_a_line_that_is_too_long_does_not_end_the_chat(chat, capsys):
    lines = iter(["x" * 100_001, SAID[0], "y" * 100_001, SAID[1], None])
    _converse(chat, lambda question: next(lines))
    told = capsys.readouterr().out
    assert (
        told.count("error: A message may have 100,000 characters, this one has 100,001.") == 2
        and told.count("model> ") == 2
    )
    assert [m["content"] for m in chat.history.messages if m["role"] == "user"] == SAID[:2] and len(
        chat.log.lessons
    ) == 1


def test_saving_leaves_one_set_of_numbers(chat):
    for text in SAID:
        chat.say(text)
        chat.log.save(chat.trainer)
    assert len(list(chat.log.folder.glob("optimizer-*.pt"))) == 1 and {
        p.name for p in chat.log.folder.iterdir()
    } <= {RECORD, PENDING, SAVED, *(p.name for p in chat.log.folder.glob("optimizer-*.pt"))}


# ---- in a terminal

FLAGS = [
    "--model.name",
    "tiny",
    "--model.hidden",
    "32",
    "--model.layers",
    "1",
    "--model.heads",
    "2",
    "--model.kv_heads",
    "2",
    "--live.learning_rate",
    "1e-3",
    "--live.max_tokens",
    "10",
]


def chat_process(folder, stdin):
    return warm.Process("-m", "humanlm.sdpo", "chat", *FLAGS, "--live.out", folder, stdin=stdin)


def test_a_session_learns_goes_back_and_is_kept(tmp_path):
    folder = tmp_path / "chat"
    with chat_process(
        folder,
        "Hello\nShorter, please\n/signal\nTell me more\n/undo\n/undo\n/undo\n/quit\nnever said\n",
    ) as process:
        assert process.wait() == 0, process.stderr
        shown = process.stdout
    assert (
        shown.count("learned from") == 2
        and shown.count("model> ") == 3
        and shown.count("taken back: 1") == 2
        and "nothing to take back" in shown
    )
    rows = read_interactions(folder / RECORD)
    assert [r.filters for r in rows] == [("undone",)] * 2 and all(
        r.learned["tokens"] == len(r.completion.token_ids) for r in rows
    )
    assert not (folder / SAVED).exists(), "the weights are those of the model that was loaded"
    with chat_process(folder, "Thanks\n") as process:
        assert (
            process.wait() == 0
            and "0 lessons so far" in process.stdout
            and "learned from" in process.stdout
        )
    assert json.loads((folder / SAVED / "live.json").read_text())["learned"] == ["live_000002"]


def test_ctrl_c_leaves_whole_files_and_a_chat_that_goes_on(tmp_path):
    folder = tmp_path / "chat"
    with chat_process(folder, "Tell me more\n" * 3000) as process:
        while process.stdout.count("learned from") < 2 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130 and "what was learned is kept" in process.stderr
    rows = read_jsonl(folder / RECORD)
    learned = json.loads((folder / SAVED / "live.json").read_text())["learned"]
    taught = [
        row["id"] for row in rows if not row.get("filters")
    ]  # of some answers nothing can be learned
    assert len(taught) >= 2 and learned in (taught, taught[:-1]), (
        "the last one may have been under way: it is learned again from the record"
    )
    assert not [
        p
        for p in folder.rglob(".*")
        if p.name.startswith((".record", ".pending", ".model", ".optimizer"))
    ]
    load_model(folder / SAVED, "own")
    with chat_process(folder, "") as process:
        assert process.wait() == 0 and f"{len(taught)} lessons so far" in process.stdout


def test_other_settings_are_refused(tmp_path, capsys):
    folder = tmp_path / "chat"
    with chat_process(folder, "Hello\n") as process:
        assert process.wait() == 0
    with pytest.raises(ConfigError, match="live.temperature"):
        chat_command([*FLAGS, "--live.out", str(folder), "--live.temperature", "0.5"])
    with pytest.raises(ConfigError, match="window must be at least 1"):
        LiveConfig(window=0)
    assert (
        chat_command([*FLAGS, "--live.out", str(folder), "--dry-run"]) == 0
        and "0 lessons so far" in capsys.readouterr().out
    )


def test_a_terminal_gets_colours_and_nothing_that_it_would_obey():
    assert (
        _signal_text([" red\x1b[2J"], [-1.0], colours=True)
        == "\x1b[30;48;5;196m·red\ufffd[2J\x1b[0m"
    )
    assert (
        "\x1b" not in _signal_text(["a\x1b"], [1.0]) and _spoken_plainly("a\x07\nb") == "a\ufffd\nb"
    )


# ---- in a notebook


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_said_stays_text_in_a_notebook(text):
    chat = new_chat()
    widget = LiveWidget(chat)
    for said in ("Hello", text):
        widget.text.value = said.encode("utf-8", "replace").decode()
        widget.send.click()
    read(widget.page.value)
    assert widget.send.disabled is False and len(chat.history.messages) == 4


def test_a_message_that_cannot_fit_is_reported_below_the_line():
    chat = new_chat()
    chat.limit = 8
    widget = LiveWidget(chat)
    widget.text.value = "Tell me more " * 50
    widget.send.click()
    assert "limit is 8" in widget.state.value and not widget.send.disabled
