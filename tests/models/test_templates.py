"""Chat templates of five families: exact texts, tails, masks, and marks that no text can forge
(3.5 and acceptance 8.7.9 of the description)."""

import random

import pytest

from humanlm.hierarchy.levels import LEVELS
from humanlm.hierarchy.prompts import (
    HierarchyConfig,
    closing,
    make_rows,
    opening,
    parts_text,
    target,
)
from humanlm.models.config import (
    TEMPLATES,
    ModelError,
    train_tokenizer,
)
from humanlm.models.prompts import _segments, end_id, render, render_target

OURS = [name for name, needed in TEMPLATES.items() if needed]
THINKS = ("humanlm", "wildchat", "chatml")
TEXTS = [
    f"the {a} tram is {b}" for a in ("night", "city") for b in ("fine", "too loud", "late")
] * 20
TAGS = [tag(n) for n in LEVELS for tag in (opening, closing)]
TINY = [
    {"role": "system", "name": "", "content": "SYS"},
    {"role": "user", "name": "alice", "content": " Post\n"},
]
CHAT = [
    *TINY[:1],
    {"role": "user", "name": "HUMAN", "content": "Hi"},
    {"role": "assistant", "name": "", "content": "Hello!"},
]
each = pytest.mark.parametrize("name", OURS)


@pytest.fixture(scope="module")
def toks():
    return {name: train_tokenizer(TEXTS, 600, TAGS, name) for name in OURS}


def _text_of(tok, messages, **options):
    return tok.decode(render(tok, messages, **options))


EXPECTED = {
    "humanlm": (
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n<name>alice</name>\nPost<|im_end|>\n<|im_start|>user\n<name>HUMAN</name>\n",
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\n<name>HUMAN</name>\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\n<name>HUMAN</name>\n",
    ),
    "wildchat": (
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>assistant\n<name>alice</name>\nPost<|im_end|>\n<|im_start|>assistant\n<name>HUMAN</name>\n",
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>assistant\n<name>HUMAN</name>\nHi<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\n<name>HUMAN</name>\n",
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nSYS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n[speaking: "
        "alice]\n"
        "Post<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n[speaking: HUMAN]\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nSYS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n[speaking: HUMAN]\n"
        "Hi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n[speaking: HUMAN]\n",
    ),
}
EXPECTED["chatml"] = (
    "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\nalice: Post<|im_end|>\n"
    "<|im_start|>assistant\n",
    "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
)
EXPECTED["qwen2.5"] = EXPECTED["humanlm"]
EXPECTED["llama3-nameless"] = tuple(
    t.replace("[speaking: alice]\n", "").replace("[speaking: HUMAN]\n", "")
    for t in EXPECTED["llama3"]
)


@each
def test_the_tiny_examples_to_the_letter(toks, name):
    assert tuple(_text_of(toks[name], m, thinking=None) for m in (TINY, CHAT)) == EXPECTED[name]
    shown = [
        TINY[0],
        TINY[1] if name != "chatml" else {"role": "user", "content": "alice: Post"},
    ]  # a plain template prints no names
    assert (
        toks[name].apply_chat_template(
            shown, tokenize=False, add_generation_prompt=True, speak_as="HUMAN"
        )
        == EXPECTED[name][0]
    )


@each
def test_no_text_can_forge_a_turn(toks, name):
    tok, rng = toks[name], random.Random(0)
    marks = [
        *{m for needed in TEMPLATES.values() for m in needed},
        "<think>",
        "</think>",
        "</name>",
        "[speaking: HUMAN]",
        *TAGS,
    ]
    own = set(tok.convert_tokens_to_ids([*TEMPLATES[name], "<think>", "</think>", "<name>", *TAGS]))
    for _ in range(100):
        words = [
            "".join(rng.choices([*marks, "tram", "\n", " ", "ž", "<|", "|>"], k=rng.randrange(10)))
            for _ in range(3)
        ]
        messages = [
            {"role": "system", "content": words[0]},
            {"role": "user", "name": words[1], "content": words[2]},
        ]
        found = _segments(tok, messages)
        assert not own & {i for s in found if s.kind == "content" for i in s.ids}
        assert words[2].strip() + TEMPLATES[name][-1] in tok.decode(
            [i for s in found for i in s.ids]
        )
        assert render(tok, messages).count(end_id(tok)) == 2


@each
@pytest.mark.parametrize("thinking", [True, False])
def test_sft_text_is_prompt_and_target_with_one_opener(toks, name, thinking):
    "Loss falls on the target and the end token only, and a thought is opened once, by the prompt"
    from humanlm.training.rollouts import sft_row
    from humanlm.training.sft import _sft_dataset

    if thinking and name not in THINKS:
        pytest.skip(f"{name} has no thoughts")
    answer = target({"response": "</think> fine<|im_end|>"}, {"goal": "late"} if thinking else None)
    data = _sft_dataset([sft_row(TINY, answer, thinking)], toks[name])[0]
    shown = render(toks[name], TINY, thinking=thinking)
    learned = render_target(toks[name], answer)
    assert data["input_ids"] == shown + learned and data["labels"] == [-100] * len(shown) + learned
    assert (
        learned[-1] == end_id(toks[name])
        and toks[name].convert_ids_to_tokens(learned[-1]) == TEMPLATES[name][-1]
    )

    def count(tag):
        return data["input_ids"].count(toks[name].convert_tokens_to_ids(tag))

    assert (count("<think>"), count("</think>")) == ((1, 1) if name in THINKS else (0, 0))
    assert toks[name].decode(learned[:-1]) == parts_text(answer)


@pytest.mark.parametrize(
    "variant, levels",
    [
        ("main", ["goal"]),
        ("response-bare", ["response"]),
        ("hetero", ["goal"]),
        ("hetero", ["goal", "belief"]),
        ("labels-ssr", ["response"]),
    ],
)
def test_supervised_rows_follow_the_form_of_their_level(toks, variant, levels):
    "What is taught is what the rollout's row asks for: same prompt"
    from humanlm.hierarchy.parsing import ParsePolicy, parse
    from humanlm.training.lessons import _WorldLessons
    from humanlm.worlds.mini import WorldConfig, make_world

    world = make_world(WorldConfig(users=12, replies_per_user=8))
    example, config = (
        next(e for e in world.examples if e.split == "train"),
        HierarchyConfig(path=variant),
    )
    taught = _WorldLessons(world, config).row(example, levels)
    row = make_rows([example], config, levels[:1])[0]
    form = row["form"] if len(levels) == 1 else "tag"
    found = parse(parts_text(taught["target"]), levels, ParsePolicy(form=form))
    assert found.status == "ok" and list(found.fields) == levels
    if len(levels) == 1:
        assert (taught["prompt"], taught["thinking"]) == (row["prompt"], row["thinking"])
    ids = render(toks["humanlm"], taught["prompt"], thinking=taught["thinking"])
    assert toks["humanlm"].decode(ids).endswith("<think>" if form == "thought" else "</think>\n\n")


# ---- templates that open a thought themselves

TURNS = (
    "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n"
    "{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|im_start|>assistant\n{}{{% endif %}}"
)
EMPTY = "<think>\\n\\n</think>\\n\\n"
R1 = "{{ '<think>\\n' }}"
OPENERS = [  # behind the assistant's header; the prompt's end with a thought; without
    ("deepseek-r1, qwq", R1, "<think>\n", None),
    ("without a line end", "<think>", "<think>", None),
    ("exaone-deep", "{{ '<thought>\\n' }}", "<thought>\n", None),
    ("magistral", "[THINK]", "[THINK]", None),
    ("a begun sentence", "{{ '<think>\\nOkay, ' }}", "<think>\nOkay, ", None),
    (
        "qwen3",
        "{% if enable_thinking is false %}{{ '" + EMPTY + "' }}{% endif %}",
        "<think>\n",
        "</think>\n\n",
    ),
    (
        "qwen3.5",
        "{% if enable_thinking is false %}{{ '" + EMPTY + "' }}{% else %}" + R1 + "{% endif %}",
        "<think>\n",
        "</think>\n\n",
    ),
    (
        "deepseek-v3.1",
        "{% if thinking %}<think>{% else %}</think>{% endif %}",
        "<think>",
        "</think>",
    ),
    ("always closed", "{{ '" + EMPTY + "' }}", None, "</think>\n\n"),
    ("no thoughts", "", None, "assistant\n"),
]


def opening_tokenizer(tail):
    tok = train_tokenizer(TEXTS, 600, [*TAGS, "<thought>", "</thought>", "[THINK]", "[/THINK]"])
    tok.chat_template = TURNS.format(tail)
    return tok


@pytest.mark.parametrize("name, tail, on, off", OPENERS, ids=[row[0] for row in OPENERS])
def test_a_thought_is_open_where_it_is_wanted_and_refused_where_it_cannot_be_avoided(
    name, tail, on, off
):
    tok = opening_tokenizer(tail)
    for thinking, end, fault in ((True, on, "opens no thoughts"), (False, off, "always opens")):
        if end is None:
            with pytest.raises(ModelError, match=fault):
                render(tok, TINY, thinking=thinking)
        else:
            assert _text_of(tok, TINY, thinking=thinking).endswith(end)


# ---- real chats
