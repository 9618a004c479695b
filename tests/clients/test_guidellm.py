"""GuideLLM, which measures servers of vLLM's kind."""

from __future__ import annotations

import json

from support.clients.checks import check_accepted
from support.clients.home import Home
from support.clients.server import ServeScript
from support.clients.tokenizer_folder import write_byte_tokenizer


def test_measures(home: Home, serve_script: ServeScript):
    server = serve_script(lambda _: "word " * 30)
    tokenizer = write_byte_tokenizer(home.home / "tokenizer")
    command = [
        *(home.programs.python("guidellm"), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={server.url},model=smollm2,api_key={server.key}"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6"),
        *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
        *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=10"),
    ]
    finished = home.run(command, {"HF_HUB_OFFLINE": "1"}, timeout=240)
    assert finished.code == 0, str(finished)
    report = json.loads((home.project / "benchmarks.json").read_text())
    [benchmark] = report["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (6, 0)
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {10}
    check_accepted(server.record)
