"""Tastes, teachers and controls with one cold start: the experiments behind results/sdpo*.json.

From the folder of this repository:

    python -m humanlm.experiment --config configs/experiments/sdpo.yaml
"""

import random
from collections.abc import Sequence
from typing import Any

from humanlm.core.basics import fingerprint, grown_rows, read_jsonl, run_sync, to_json, write_jsonl
from humanlm.core.config import Settings
from humanlm.core.stats import known_mean
from humanlm.evaluation.measured import Measurement, score_table
from humanlm.evaluation.outcome import Arms, rounded
from humanlm.evaluation.report import curve
from humanlm.models.prompts import render
from humanlm.sdpo.hindsight import (
    AssistantReply,
    Followup,
    Interaction,
    fit_messages,
    hindsight_messages,
)
from humanlm.sdpo.preferences import _with_style
from humanlm.sdpo.recipe import TOY, _measured_replies
from humanlm.sdpo.recipe import recipe as sdpo
from humanlm.sdpo.styles import TASTES
from humanlm.sdpo.users import Exchange, UserConfig, make_user
from humanlm.training.experiment import Study, Trial
from humanlm.training.method import ask_row
from humanlm.worlds.requests import all_requests, draw_traits, write_reply


class SDPOStudy(Study):
    "A study whose models share the lessons of a seed and are compared with the start"

    against = ("cold-start",)

    def models(self, s: Settings) -> list[str]:
        "Return the names of the compared models; with lessons, without the untrained one"
        return [name for name in super().models(s) if name != "base" or not sdpo.teaches(s)]

    def shared(self, s: Settings) -> dict[str, str]:
        "Return the models before any follow-up, with all their settings"
        depends = to_json([s.model, s.sft, s.prompts.train, s.run.seed])
        return dict.fromkeys(["base", "cold-start"], depends) if sdpo.teaches(s) else {}

    def pairs(self, s: Settings, against: Sequence[str]) -> list[tuple[str, str]]:
        "Return pairs: each model with the start, each phase with the one before"
        phases = [name for name in self.models(s) if name.startswith("online")]
        return [*super().pairs(s, against), *zip(phases[1:], phases)]

    def complete(self, trials: Sequence[Trial], arms: Arms) -> dict[str, Any]:
        "Add the change in each seed, and the preference of users during training"
        pairs = {
            (trial.arm(name), trial.arm("cold-start")): None
            for trial in trials
            for name in self.models(trial.settings)
            if name != "cold-start" and trial.arm("cold-start") in arms.tables
        }
        seeds = list(dict.fromkeys(trial.seed for trial in trials))
        return {
            "by_seed": rounded(arms.seed_changes(list(pairs), "preference", seeds)),
            "preference_curves": rounded(preference_curves(trials)),
        }


def preference_curves(trials: Sequence[Trial], points: int = 30) -> list[dict]:
    "Return the preference for the replies of each stage as means at `points` points"
    curves = []
    for trial in trials:
        log = grown_rows(trial.folder / "metrics.jsonl")
        for stage in dict.fromkeys(line["stage"] for line in log):
            steps, means = curve(log, stage, "user/preference", points)
            if steps:
                names = {"variant": trial.variant, "stage": stage, "seed": trial.seed}
                curves.append(names | {"steps": steps, "preference": means})
    return curves


def toy_logs(count: int, seed: int, user: UserConfig) -> list[Interaction]:
    "Make logs: replies with random traits, and the user's follow-ups"
    rng, (train, _) = random.Random(f"logs{seed}"), all_requests()
    requests = [rng.choice(train) for _ in range(count)]
    exchanges = [
        Exchange(
            ({"role": "user", "content": r.text},), write_reply(r.thing, draw_traits(rng), rng), i
        )
        for i, r in enumerate(requests)
    ]
    reactions = run_sync(make_user(user)(exchanges))
    return [
        Interaction(
            f"toy-{i}",
            exchange.messages,
            AssistantReply(exchange.reply, model="write_reply"),
            Followup(reaction.text, "simulated"),
            user_id=reaction.user,
        )
        for i, (exchange, reaction) in enumerate(zip(exchanges, reactions))
        if reaction.text
    ]


MORE = 512  # tokens that a prompt may have beyond the longest, where it says what is wanted


def told_row(
    s: Settings, messages: Sequence[dict], taste: str, number: int, tokenizer: Any
) -> dict:
    "Return a prompt that names the wanted trait: in the system message, or as in the lessons"
    shown = _with_style(messages, taste)
    if s.prompts.train == TOY and taste in TASTES:
        complaints = TASTES[taste].complaints
        shown = hindsight_messages(messages, complaints[number % len(complaints)])
    fitted = fit_messages(tokenizer, shown, s.model.max_prompt_tokens + MORE)
    row = ask_row("", fingerprint(list(shown)), s.prompts.max_tokens)
    return row | {"prompt": fitted, "speaker": "", "prompt_ids": render(tokenizer, fitted, "")}


def told_replies(run: Any, start: str, rows: Sequence[dict], taste: str) -> list[str]:
    "Return replies of the start to prompts that name the wanted trait; made once"

    def make():
        return [{"text": completion.text} for completion in run.answers(start, rows)]

    file = f"replies/in-context-{taste}.jsonl"
    return [row["text"] for row in run.kept(file, make, write_jsonl, read_jsonl)]


def together(rows: Sequence[Measurement]) -> Measurement:
    "Join the measurements of one prompt over tastes; lengths and contents are means"
    tables = score_table(rows)
    return rows[0]._replace(
        values={
            metric: {part: float(known_mean(values)) for part, values in parts.items()}
            for metric, parts in tables.items()
        }
    )


class StudiedSDPO(type(sdpo)):
    "The recipe SDPO with made-up logs, and a start whose prompts name the wanted trait"

    study = "experiments.sdpo:SDPOStudy"

    def load(self, s: Settings, **more: Any) -> Any:
        "Read prompts or logs; the method offline gets made-up logs"
        if s.prompts.train == TOY and "offline" in s.run.methods:
            more["logged"] = toy_logs(s.prompts.train_n or 2000, s.run.seed, s.user)
        return super().load(s, **more)

    def references(self, run: Any) -> dict[str, list[Measurement]]:
        "Measure the start with the wanted trait in the prompt, as a goal for training"
        s = run.settings
        start = "cold-start" if self.teaches(s) else "base"
        tokenizer, each = run.load(start)[1], []
        for taste in s.preference.tastes_of(s.user):
            rows = [told_row(s, m, taste, i, tokenizer) for i, m in enumerate(run.work.test)]
            texts = told_replies(run, start, rows, taste)
            each.append(_measured_replies(run, texts, [taste]))
        return {"in-context": [together(rows) for rows in zip(*each)]} if each else {}


recipe = StudiedSDPO()
