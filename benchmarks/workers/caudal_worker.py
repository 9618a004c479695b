"""`caudal_worker MODEL THREADS MAX_LEN KV_TYPE`: Caudal's engine, as a server drives it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.workers.protocol import Done, Job, serve
from caudal.engine.config import EngineConfig
from caudal.engine.engine import Engine
from caudal.engine.request import Generate, Request
from caudal.loading.load import load_model
from caudal.loading.options import LoadOptions
from caudal.sampling_params import SamplingParams

BATCH_TOKENS = 512
"""Most tokens of one pass; as llama.cpp's default, since nobody waits for a stream here."""


def load() -> tuple[Callable[[Job], Done], dict[str, str]]:
    """Load the model; a job gets an engine of its own."""
    path, threads, max_len = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options = LoadOptions(
        threads=threads,
        max_model_len=max_len,
        max_num_batched_tokens=BATCH_TOKENS,
        kv_type=sys.argv[4],
    )
    loaded = load_model(path, options)

    def run(job: Job) -> Done:
        config = EngineConfig(
            max_model_len=max_len,
            max_num_batched_tokens=BATCH_TOKENS,
            prefix_cache=False,
        )
        engine = Engine(loaded.executor, config, loaded.tokenizer.eos_ids)
        params = SamplingParams(temperature=0.0, max_tokens=job.generated, ignore_eos=True)
        for number, prompt in enumerate(job.prompts):
            engine.submit(Request(request_id=str(number), prompt=prompt, work=Generate(params)))
        waiting, first, generated = set(map(str, range(len(job.prompts)))), 0.0, 0
        start = time.perf_counter()
        while engine.has_work:
            for update in engine.step():
                generated += len(update.tokens)
                if update.tokens and update.request_id in waiting:
                    waiting.remove(update.request_id)
                    first = time.perf_counter() - start
        return Done(first, time.perf_counter() - start, generated)

    executor = loaded.facts.executor
    return run, {
        "tensors": loaded.facts.tensors_text,
        "instruction_set": executor.instruction_set,
        "threads": str(executor.threads),
        "activations": executor.activations,
        "kv_type": executor.kv_type,
    }


if __name__ == "__main__":
    serve(load)
