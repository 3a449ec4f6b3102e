"Parsers, predicted steps, futures and the quality of records: what hostile texts, odd answers and broken files do to them"

import asyncio
import json

import pytest

from humanlm.contexts import Context, memories, to_lists, violations
from humanlm.data import DataError
from humanlm.llm import LLMError, Ledger, ScriptedClient
from humanlm.social_world import (
    HINTS, LLMParser, StoredParser, SymbolicParser, futures, parse_prompt, parser, predict_step, read_record, read_verdict,
    with_step)
from humanlm.symbolic import read_story, to_context

STORY = "Oda entered the larder.\nBela entered the larder.\nThe plum is in the crock.\nOda exited the larder.\nBela moved the plum to the sieve."
CONTEXT = to_context(read_story(STORY))
RECORD = json.dumps(to_lists(CONTEXT))


def run(coroutine): return asyncio.run(coroutine)


def test_both_parsers_stand_behind_one_call():
    exact = run(parser("symbolic")(STORY, "tomi"))
    asked = run(LLMParser(ScriptedClient(lambda request: RECORD))(STORY, "tomi"))
    assert exact.context.steps == asked.context.steps and exact.status == asked.status == "parsed"
    assert asked.context.task_specific_instructions == HINTS["tomi"]
