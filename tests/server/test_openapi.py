"""The OpenAPI document is true: requests made up from it, right and wrong, get what it says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from caudal.chat.preparer import ChatPreparer
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.template_workers import TemplateWorkers
from caudal.server.app import create_app
from caudal.service.registry import ModelRegistry
from support.fake_model import ScriptedExecutor, changed, serve_fake
from support.running_server import RunningServer, running_server
from support.vocabularies import bpe_metadata, make_tokenizer

EXAMPLES = 9
"""Per operation, and as many that are wrong."""

ANSWER = '<think>hm</think>Hi <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'

TEMPLATE = """\
{% if tools %}{{ tools | tojson }} <tool_call></tool_call>{% endif %}
{% for message in messages %}{{ message.role }}: {{ message.content }}
{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}assistant: {% if not enable_thinking %}<think></think>{% endif %}
{% endif %}
"""

DOCUMENT = create_app(ModelRegistry()).openapi()


def answerable(document: dict[str, Any]) -> dict[str, Any]:
    """The document, narrowed so that most of what it allows gets as far as the model."""
    narrow = copy.deepcopy(document)
    schemas = narrow["components"]["schemas"]
    for schema in schemas.values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"type": "string", "enum": ["fake"]}
        for name in {"timeout", "first_token_timeout"} & schema.get("properties", {}).keys():
            schema["properties"][name] = {"type": "number", "minimum": 60}
    text = {"type": "string", "minLength": 1}
    role = {"type": "string", "enum": ["user", "assistant"]}
    schemas["ChatMessage"] |= {
        "properties": {"role": role, "content": text},
        "required": ["role", "content"],
    }
    for name in ("InputFields", "ResponseRequest"):
        schemas[name]["properties"]["input"] = text
        schemas[name]["required"] = ["model", "input"]
        del schemas[name]["properties"]["previous_response_id"]
    return narrow


def operations(document: dict[str, Any]) -> dict[str, APIOperation]:
    """By method and path."""
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    return {operation.label: operation for operation in (each.ok() for each in found)}


RIGHT = operations(answerable(DOCUMENT))
WRONG = {label: each for label, each in operations(DOCUMENT).items() if each.body or each.query}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Thinks, calls tools and embeds, with a real tokenizer and chat template."""
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("vocabulary"), bpe_metadata())
    executor = ScriptedExecutor(
        script=ANSWER.encode(), num_blocks=2048, vocab_size=tokenizer.vocab_size
    )
    model = serve_fake(executor, tokenizer=tokenizer, max_model_len=4096)
    model = changed(
        model,
        chat=ChatPreparer(
            ChatTemplate(TEMPLATE, tokenizer), tokenizer, request_templates=TemplateWorkers()
        ),
    )
    with running_server(model) as running:
        yield running


def send_examples(server: RunningServer, operation: APIOperation, mode: GenerationMode) -> int:
    """Sends an operation's examples, checks the answers, and says how many requests were served."""
    served = 0

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        nonlocal served
        response = case.call(base_url=server.url, timeout=20)
        served += response.status_code == 200
        case.validate_response(
            response,
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
                negative_data_rejection,
            ],
        )

    send()
    assert server.http.get("/health").json() == {"status": "ok"}
    return served


def test_the_document_is_valid():
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_requests_that_the_document_allows_get_an_answer_or_a_reason(server: RunningServer):
    served = {
        label: send_examples(server, operation, GenerationMode.POSITIVE)
        for label, operation in RIGHT.items()
    }
    # Else they test no more than how requests are refused. What a made-up id names isn't there.
    askable = [answers for label, answers in served.items() if "{" not in label]
    assert sum(map(bool, askable)) > len(askable) / 2, served


@pytest.mark.parametrize("label", WRONG)
def test_requests_that_the_document_rules_out_are_refused(server: RunningServer, label: str):
    send_examples(server, WRONG[label], GenerationMode.NEGATIVE)


def test_half_a_surrogate_pair_in_a_requests_template_is_read_as_unknown(server: RunningServer):
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "a\ud800"}
    response = server.http.post(
        "/tokenize", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert response.json()["tokens"] == list("a\N{REPLACEMENT CHARACTER}".encode())
