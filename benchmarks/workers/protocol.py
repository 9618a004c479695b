"""How a worker and the benchmark talk: a line `{"ready": facts}`, then an answer for each job."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """Sequences to compute together from nothing, each `generated` tokens beyond its prompt.

    Generation is greedy and goes on past the end-of-sequence token. Nothing may be kept from one
    job for the next.
    """

    prompts: Sequence[Sequence[int]]
    generated: int


@dataclass(frozen=True)
class Done:
    """What came of a job: seconds as in `benchmarks.cases.Timing`, and all tokens generated."""

    first: float
    total: float
    generated: int


def serve(load: Callable[[], tuple[Callable[[Job], Done], dict[str, str]]]) -> None:
    """Load a model, then run jobs until standard input ends.

    Args:
        load: Returns what runs a job, and facts for the report.
    """
    # Libraries print to standard output, also from C++; the conversation gets a channel of its own.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run, facts = load()
    print(json.dumps({"ready": facts}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        generator = random.Random(request["seed"])
        prompts = [
            [generator.randrange(request["vocab_size"]) for _ in range(request["prompt_tokens"])]
            for _ in range(request["sequences"])
        ]
        done = run(Job(prompts, request["generated"]))
        reply = {"first": done.first, "total": done.total, "generated": done.generated}
        print(json.dumps(reply), file=answers)
