from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest


@pytest.fixture(scope="session")
def server_url(smollm2_path: Path) -> Iterator[str]:
    """The address of `caudal serve` on the default model."""
    command = [sys.executable, "-c", "from caudal.cli import main; main()", "serve"]
    options = ["--port", "0", "--served-model-name", "smollm2", "--kv-memory", "256MiB"]
    options.append("--allow-request-templates")
    process = subprocess.Popen(
        [*command, str(smollm2_path), *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"\s*address\s+(http://\S+)/v1", line):
                yield match[1]
                break
        else:
            pytest.fail(f"the server did not start; it exited with {process.wait()}")
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.fixture(scope="session")
def client(server_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120)
