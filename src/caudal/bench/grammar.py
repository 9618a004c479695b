"""What answers of a form cost, and what jump-ahead brings: `caudal bench engine --grammar`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.grammar import Grammar
from caudal.engine.request import Generate, Request
from caudal.grammars.requests import RequestGrammars
from caudal.loading.load import LoadedModel
from caudal.sampling_params import SamplingParams
from caudal.structured_outputs import StructuredOutputsParams

PROMPT = (
    "Acme Bakery in Madrid is looking for a full-time baker. Describe the position as JSON.\n\n"
)
ANSWER_TOKENS = 256


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA = _object(
    {
        "advertised_position_title": {"type": "string", "maxLength": 24},
        "employment_contract_type": {"enum": ["full-time", "part-time", "temporary"]},
        "number_of_open_positions": {"type": "integer", "minimum": 1, "maximum": 99},
        "is_remote_work_possible": {"type": "boolean"},
        "place_of_employment": _object(
            {
                "city_of_employment": {"type": "string", "maxLength": 16},
                "country_of_employment": {"enum": ["Spain", "France", "Portugal"]},
            }
        ),
        "required_years_of_experience": {"type": "integer", "minimum": 0, "maximum": 40},
        "accepted_application_languages": {
            "type": "array",
            "items": {"enum": ["Spanish", "French", "English"]},
            "minItems": 1,
            "maxItems": 2,
        },
    }
)
"""A schema with long keys and short values, as of a form that is filled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarReport:
    """What was measured.

    Attributes:
        index_seconds: Indexing the vocabulary, once for a model.
        compile_seconds: Compiling the schema, once for a schema.
        mask_microseconds: Masking and following one drawn token, on average, of each run.
        drawn_seconds: A whole answer with every token drawn, of each run.
        jump_seconds: The same with jump-ahead.
        answer_tokens: Tokens of the answer with jump-ahead.
        drawn_tokens: Those of them that were drawn.
    """

    index_seconds: float
    compile_seconds: float
    mask_microseconds: Sequence[float]
    drawn_seconds: Sequence[float]
    jump_seconds: Sequence[float]
    answer_tokens: int
    drawn_tokens: int

    @property
    def speedup(self) -> float:
        """How many times faster a whole answer is with jump-ahead; median against median."""
        return statistics.median(self.drawn_seconds) / statistics.median(self.jump_seconds)


def measure_grammar(
    model: LoadedModel, *, runs: int, progress: Callable[[str], None]
) -> GrammarReport:
    """Measure one answer at a time, with and without jump-ahead in turn.

    Args:
        model: The model; its grammars must not have been used.
        runs: How often everything is measured, after one run to warm up.
        progress: Told what is being measured.
    """
    progress("the vocabulary's index")
    compiler = model.grammars
    index_seconds = _timed(lambda: compiler.compile_now(StructuredOutputsParams(regex="a")))
    progress("compiling")
    form = StructuredOutputsParams(json=SCHEMA)
    compile_seconds = _timed(lambda: compiler.compile_now(form))
    grammar = compiler.compile_now(form)
    prompt = model.tokenizer.encode(PROMPT)
    drawn: list[float] = []
    jumped: list[float] = []
    masks: list[float] = []
    answer: list[int] = []
    for run in range(runs + 1):
        progress(f"answers, run {run} of {runs}" if run else "answers, to warm up")
        one_by_one, seconds_drawn = _answer(model, prompt, form, jump_ahead=False)
        answer, seconds_jumped = _answer(model, prompt, form, jump_ahead=True)
        mask = _mask_microseconds(grammar, one_by_one)
        if run:
            drawn.append(seconds_drawn)
            jumped.append(seconds_jumped)
            masks.append(mask)
    return GrammarReport(
        index_seconds=index_seconds,
        compile_seconds=compile_seconds,
        mask_microseconds=masks,
        drawn_seconds=drawn,
        jump_seconds=jumped,
        answer_tokens=len(answer),
        drawn_tokens=_count_drawn(grammar, answer),
    )


def _answer(
    model: LoadedModel, prompt: list[int], form: StructuredOutputsParams, *, jump_ahead: bool
) -> tuple[list[int], float]:
    """A greedy answer and the seconds from submission to its end, prompt included."""
    config = EngineConfig(
        max_model_len=len(prompt) + ANSWER_TOKENS,
        max_num_seqs=1,
        max_num_batched_tokens=model.engine_config.max_num_batched_tokens,
        prefix_cache=False,
        jump_ahead=jump_ahead,
    )
    grammars = RequestGrammars(model.tokenizer, model.grammars)
    engine = Engine(model.executor, config, model.tokenizer.eos_ids, grammars)
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, structured_outputs=form)
    start = time.perf_counter()
    engine.submit(Request(request_id="answer", prompt=prompt, work=Generate(params)))
    tokens: list[int] = []
    while engine.has_work:
        for update in engine.step():
            tokens += [sampled.token for sampled in update.tokens]
    return tokens, time.perf_counter() - start


def _mask_microseconds(grammar: Grammar, answer: Sequence[int]) -> float:
    """The matcher's part of an answer whose tokens are all drawn, per token."""
    matcher = grammar.matcher()
    start = time.perf_counter()
    for token in answer:
        matcher.allowed()
        matcher.accept([token])
    return (time.perf_counter() - start) / len(answer) * 1e6


def _count_drawn(grammar: Grammar, answer: Sequence[int]) -> int:
    matcher = grammar.matcher()
    place = drawn = 0
    while place < len(answer):
        forced = matcher.forced()
        if not forced:
            drawn += 1
            forced = answer[place : place + 1]
        matcher.accept(forced)
        place += len(forced)
    return drawn


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
