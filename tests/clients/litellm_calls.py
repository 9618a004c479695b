"""LiteLLM's ways to a model, for `test_litellm.py`, in LiteLLM's own environment.

Prints a line of JSON for every call: its name, and what it gave or the error it raised.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import litellm

URL, KEY = os.environ["CAUDAL_URL"], os.environ["CAUDAL_KEY"]
ASK: list[Any] = [{"role": "user", "content": "hi"}]
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "Runs a command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHTS = {
    "reasoning_content": "r",
    "thinking_blocks": [{"type": "thinking", "thinking": "r", "signature": "abc"}],
    "provider_specific_fields": {"a": 1},
}


def say(name: str, call: Callable[[], Any]) -> None:
    """Make a call and print what came of it."""
    try:
        print(json.dumps({"name": name, "gave": call()}), flush=True)
    except Exception as error:
        print(json.dumps({"name": name, "error": f"{type(error).__name__}: {error}"}), flush=True)


def main(model: str, base: str) -> None:
    """Try everything with one provider, such as `hosted_vllm/smollm2`."""
    address: dict[str, Any] = {"model": model, "api_base": base, "api_key": KEY}

    def complete(messages: list[Any] = ASK, **more: Any) -> Any:
        options = {"max_tokens": 500, "drop_params": True, **address, **more}
        return litellm.completion(messages=messages, **options)

    def message(messages: list[Any] = ASK, **more: Any) -> Any:
        return complete(messages, **more).choices[0].message

    def streamed() -> str:
        chunks = complete(stream=True, stream_options={"include_usage": True})
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    def command(**more: Any) -> Any:
        [call] = message(tools=[BASH], **more).tool_calls
        return json.loads(call.function.arguments)["command"]

    def json_answer() -> Any:
        schema = {"name": "person", "schema": PERSON, "strict": True}
        form = {"type": "json_schema", "json_schema": schema}
        return sorted(json.loads(message(response_format=form).content))

    system = {"role": "system", "content": [{"type": "text", "text": "s", **CACHED}]}
    history = [*ASK, {"role": "assistant", "content": "x", **THOUGHTS}, *ASK]
    say("text", lambda: message().content)
    say("streamed text", streamed)
    say("a call", command)
    say("a demanded call", lambda: command(tool_choice="required"))
    say("cached parts", lambda: message([system, *ASK], tools=[{**BASH, **CACHED}]).role)
    say("reasoning effort", lambda: message(reasoning_effort="low").content)
    say(
        "thinking",
        lambda: (
            message(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000).content
        ),
    )
    say("another model's history", lambda: message(history).content)
    say("a schema", json_answer)
    say("user and metadata", lambda: message(user="u", metadata={"a": "b"}).content)
    say(
        "anthropic_messages",
        lambda: asyncio.run(litellm.anthropic_messages(messages=ASK, max_tokens=500, **address))[
            "content"
        ][0]["text"],
    )
    if not model.startswith("anthropic/"):
        say("responses", lambda: litellm.responses(input="hi", **address).output[0].content[0].text)
        say("embedding", lambda: len(litellm.embedding(input=["x", "y"], **address).data))
        say("completion", lambda: litellm.text_completion(prompt="hi", **address).choices[0].text)
    if model.startswith("hosted_vllm/"):
        rerank: dict[str, Any] = {"query": "a", "documents": ["b", "c"], "api_key": KEY}
        for provider, path in (("hosted_vllm", ""), ("cohere", "/v2/rerank"), ("jina_ai", "")):
            options = {**rerank, "model": f"{provider}/smollm2", "api_base": URL + path}
            say(f"rerank of {provider}", lambda o=options: len(litellm.rerank(**o).results))


if __name__ == "__main__":
    main(*sys.argv[1:])
