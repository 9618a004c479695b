"""A fake chat template for a model that thinks and calls tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from caudal.chat.preparer import ChatPreparer
from caudal.errors import TemplateError
from support.fake_model import ByteTokenizer, FakeTemplate


class ToolTemplate(FakeTemplate):
    """A message per line as JSON, after the tools; has a switch for thinking.

    Its source shows that answers mark reasoning by `<think>` and calls by `<tool_call>`.
    """

    sources = ("<think></think> <tool_call></tool_call> enable_thinking tools",)
    variables = frozenset(("tools", "enable_thinking"))

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        if any(message["content"] == "refuse me" for message in messages):
            raise TemplateError("this conversation makes no sense")
        lines = [json.dumps(tool) for tool in tools or ()]
        lines += [json.dumps(message) for message in messages]
        lines += [f"{name}={value}" for name, value in (template_kwargs or {}).items()]
        if add_generation_prompt:
            lines.append("assistant:")
        return list("\n".join(lines).encode(errors="replace"))


def tool_chat() -> ChatPreparer:
    """What reads and writes such conversations."""
    template: Any = ToolTemplate()
    tokenizer: Any = ByteTokenizer()
    return ChatPreparer(template, tokenizer)
