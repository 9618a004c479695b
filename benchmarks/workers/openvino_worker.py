"""`openvino_worker MODEL THREADS MAX_LEN`: OpenVINO GenAI's continuous batching pipeline."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import openvino
import openvino_genai

from benchmarks.workers.protocol import Done, Job, serve

CACHE_GB = 2
"""Room for keys and values; enough for any case with any of the models."""


def load() -> tuple[Callable[[Job], Done], dict[str, str]]:
    """Read the GGUF file, which the pipeline converts to a model of its own."""
    path, threads, max_len = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = max(4096, max_len)
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
    )
    requests = iter(range(2**62))

    def run(job: Job) -> Done:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = job.generated
        config.ignore_eos = True
        config.do_sample = False
        handles = {
            pipeline.add_request(number, openvino.Tensor(np.array([prompt], np.int64)), config)
            for number, prompt in zip(requests, job.prompts, strict=False)
        }
        waiting, first, generated = set(handles), 0.0, 0
        start = time.perf_counter()
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter() - start
            for handle in handles:
                while handle.can_read():
                    generated += sum(len(o.generated_ids) for o in handle.read().values())
                    if handle in waiting:
                        waiting.remove(handle)
                        first = now
        return Done(first, time.perf_counter() - start, generated)

    return run, {}


if __name__ == "__main__":
    serve(load)
