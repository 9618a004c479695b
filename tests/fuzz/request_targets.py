"""Targets that read what clients send: whatever is wrong with it is said in the API's own form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from fuzz.target import Run

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello <|im_end|>"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What time is it?"}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "a", "function": {"name": "time", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ],
]
TIME: dict[str, Any] = {
    "type": "object",
    "required": ["zone"],
    "properties": {
        "zone": {"type": ["string", "null"], "enum": ["UTC", None, 3], "default": "UTC"},
        "options": {"type": "object", "properties": {"b": {"anyOf": [{"type": "number"}]}}},
        "anything": True,
    },
}
STEPS = 24
"""Tokens that a grammar is followed for."""


@contextmanager
def template() -> Iterator[Run]:
    """A chat template, for some conversations."""
    import tempfile
    from pathlib import Path

    from caudal.errors import ParameterError, TemplateError
    from caudal.formats.chat_template import ChatTemplate
    from support.vocabularies import bpe_metadata, make_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = make_tokenizer(Path(folder), bpe_metadata())

    def run(data: bytes) -> bool:
        made = ChatTemplate(data.decode(errors="replace"), tokenizer)
        accepted = False
        for messages in CONVERSATIONS:
            for final in (False, True):
                try:
                    made.encode(messages, continue_final_message=final)
                    accepted = True
                except (TemplateError, ParameterError):
                    continue
        return accepted

    yield run


@contextmanager
def go_template() -> Iterator[Run]:
    """A template of Go's, for conversations and for a gap."""
    from caudal.errors import TemplateError
    from caudal.formats.chat_messages import normalize_messages
    from caudal.formats.go_template.ollama import OllamaTemplate

    conversations = [
        normalize_messages(messages, takes_parts=False, takes_text=True)
        for messages in CONVERSATIONS
    ]
    tools = [{"type": "function", "function": {"name": "time", "parameters": TIME}}]
    variables: list[dict[str, Any]] = [
        *({"messages": messages, "tools": tools} for messages in conversations),
        {"messages": conversations[0], "reasoning_effort": "low"},
        {"prompt": "def f(", "suffix": "\n"},
    ]

    def run(data: bytes) -> bool:
        accepted = False
        for told in variables:
            try:
                OllamaTemplate.compile(data.decode(errors="replace")).render(told)
                accepted = True
            except TemplateError:
                continue
        return accepted

    yield run


@contextmanager
def schema() -> Iterator[Run]:
    """A JSON schema, as text."""
    with _grammars() as follow:
        yield lambda data: follow("json", data)


@contextmanager
def regex() -> Iterator[Run]:
    """A regular expression."""
    with _grammars() as follow:
        yield lambda data: follow("regex", data)


@contextmanager
def grammar() -> Iterator[Run]:
    """A Lark or GBNF grammar."""
    with _grammars() as follow:
        yield lambda data: follow("grammar", data)


@contextmanager
def http() -> Iterator[Run]:
    """A path of the server on the first line, the body after it."""
    from caudal.server.app import create_app
    from caudal.service.registry import ModelRegistry
    from support.fake_model import ScriptedExecutor, changed, serve_fake
    from support.fake_template import tool_chat

    script = b'<think>hm</think>Hello <tool_call>{"name": "f", "arguments": {}}</tool_call>'
    loop = asyncio.new_event_loop()

    async def start() -> Any:
        model = serve_fake(ScriptedExecutor(script=script, num_blocks=2048), max_model_len=4096)
        return changed(model, chat=tool_chat())

    model = loop.run_until_complete(start())
    registry = ModelRegistry()
    registry.add(model)
    app = create_app(registry)

    def run(data: bytes) -> bool:
        path, _, body = data.partition(b"\n")
        status, headers, answer = loop.run_until_complete(_post(app, path, body))
        assert model.parts.engine.healthy, "the engine is dead"
        # A request may bring a timeout that nothing can keep.
        assert 200 <= status < 500 or status == 504, f"status {status}: {answer[:2000]!r}"
        if status >= 400 and status not in (404, 405):
            said = json.loads(answer)
            error = said["error"]
            text = error["message"] if isinstance(error, dict) else error
            assert isinstance(text, str), f"{headers}: {said}"
            assert text, f"{headers}: {said}"
        return status < 400

    try:
        yield run
    finally:
        loop.run_until_complete(model.parts.engine.shutdown())
        loop.close()


async def _post(app: Any, path: bytes, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Send one request into the application; returns status, headers and body."""
    text = path.decode("latin-1") or "/"
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": text,
        "raw_path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    left = [{"type": "http.request", "body": body, "more_body": False}]
    started: dict[str, Any] = {}
    pieces: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if left:
            return left.pop()
        await asyncio.sleep(3600)  # the client waits
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        elif message["type"] == "http.response.body":
            pieces.append(bytes(message.get("body", b"")))

    await app(scope, receive, send)
    return started["status"], dict(started["headers"]), b"".join(pieces)


@contextmanager
def _grammars() -> Iterator[Any]:
    from caudal.engine.grammar import MatcherError
    from caudal.errors import ParameterError
    from caudal.grammars.compiler import GrammarCompiler
    from caudal.structured_outputs import StructuredOutputsParams
    from support.fake_model import ByteTokenizer

    tokenizer: Any = ByteTokenizer()
    compiler = GrammarCompiler(tokenizer)
    compiler.prepare()

    def follow(kind: str, data: bytes) -> bool:
        """Compile, and go on by the first or the last allowed token in turn."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return False
        try:
            compiled = compiler.compile_now(StructuredOutputsParams(**{kind: text}))
        except ParameterError:
            return False
        matcher = compiled.matcher()
        try:
            for step in range(STEPS):
                if matcher.complete:
                    break
                mask = int.from_bytes(matcher.allowed(), "little")
                if not mask:
                    break
                lowest, highest = (mask & -mask).bit_length() - 1, mask.bit_length() - 1
                matcher.accept([lowest if step % 2 else highest])
                matcher.forced()
        except MatcherError:
            return True  # it hit a limit on its way, which fails one request
        return True

    yield follow
