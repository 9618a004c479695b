"""`--normalise-prompts`, whichever API a conversation comes by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from caudal.chat.preparer import ChatPreparer
from support.fake_launcher import FakeModel
from support.fake_model import ByteTokenizer, RoleTemplate, changed
from support.made_up_models import says, serving

RULES = "Be brief. " * 16


class RulesTemplate(RoleTemplate):
    """One that takes system messages."""

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        said = [{**each, "role": each["role"].replace("system", "rules")} for each in messages]
        return super().encode(said, **options)


def model() -> FakeModel:
    made = says("hello")
    plain: Any = made.make_service
    template: Any = RulesTemplate()
    tokenizer: Any = ByteTokenizer()
    preparer = ChatPreparer(template, tokenizer, tool_parser="auto", reasoning_parser="auto")
    made.make_service = lambda name: changed(plain(name), chat=preparer)
    return made


def chat(number: int) -> tuple[str, dict[str, Any]]:
    header = f"x-anthropic-billing-header: cc_version=2.1; cch=a{number}b;\n"
    messages = [{"role": "system", "content": header + RULES}, {"role": "user", "content": "hey"}]
    return "/v1/chat/completions", {"messages": messages}


def messages(number: int) -> tuple[str, dict[str, Any]]:
    system = f"{RULES}\n<total_tokens>{90 - number} tokens left</total_tokens>"
    said = [{"role": "user", "content": "hey"}]
    return "/v1/messages", {"system": system, "messages": said, "max_tokens": 9}


@pytest.mark.parametrize(
    ("request_of", "rule"), [(chat, "billing-header"), (messages, "tokens-left")]
)
def test_the_second_prompt_is_found_in_the_cache_and_what_was_done_is_said(
    request_of: Any, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    name = f"claude-code.{rule}"
    cached: dict[bool, bool] = {}
    for wanted in (False, True):
        app = {"normalise_prompts": ["claude-code"]} if wanted else {}
        with serving(app=app, a=model()) as (server, _):
            for number in range(2):
                path, body = request_of(number)
                answer = server.http.post(path, json=body | {"model": "a"})
                assert answer.status_code == 200, answer.text
                assert answer.headers.get("x-caudal-normalised") == (name if wanted else None)
            found = server.metric('caudal_prefix_cache_hit_tokens_total{model="a"}')
            both = server.metric('caudal_prompt_tokens_total{model="a"}')
            cached[wanted] = found == both / 2 - 1  # the last token is always computed
            if wanted:
                assert server.metric(f'caudal_normalised_prompts_total{{rule="{name}"}}') == 2
                body = messages(3)[1] | {"model": "a"}
                sized = server.http.post("/v1/messages/count_tokens", json=body)
                assert sized.headers["x-caudal-normalised"] == "claude-code.tokens-left"
                for path in ("/tokenize", "/apply-template"):
                    shown = server.http.post(path, json=chat(3)[1] | {"model": "a"})
                    assert shown.headers["x-caudal-normalised"] == "claude-code.billing-header"
                    assert "billing" not in shown.text
    assert cached[True]
    assert not cached[False]
    assert len([line for line in caplog.messages if f"{name} was taken out" in line]) == 1
