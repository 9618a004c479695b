"""`vllm_worker DIRECTORY THREADS MAX_LEN DTYPE KV_DTYPE`: vLLM's engine, in this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from vllm import LLM, SamplingParams

from benchmarks.workers.protocol import Done, Job, serve


def load() -> tuple[Callable[[Job], Done], dict[str, str]]:
    """Load the safetensors copy of a model."""
    path, max_len, dtype, kv_dtype = sys.argv[1], int(sys.argv[3]), *sys.argv[4:6]
    llm = LLM(
        path,
        dtype=dtype,
        kv_cache_dtype=kv_dtype,
        max_model_len=max_len,
        max_num_seqs=32,
        max_num_batched_tokens=max(4096, max_len),
        enable_prefix_caching=False,
    )
    engine = llm.llm_engine
    requests = iter(range(2**62))

    def run(job: Job) -> Done:
        params = SamplingParams(
            temperature=0.0, max_tokens=job.generated, ignore_eos=True, detokenize=False
        )
        waiting = set()
        for number, prompt in zip(requests, job.prompts, strict=False):
            engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, params)
            waiting.add(str(number))
        first, generated = 0.0, 0
        start = time.perf_counter()
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - start
            for output in outputs:
                if output.request_id in waiting:
                    waiting.remove(output.request_id)
                    first = now
                if output.finished:
                    generated += len(output.outputs[0].token_ids)
        return Done(first, time.perf_counter() - start, generated)

    return run, {"threads": str(torch.get_num_threads()), "dtype": dtype, "kv_type": kv_dtype}


if __name__ == "__main__":
    serve(load)
