"""What scripted models say to client programs, in SmolLM2's and Hermes's formats."""

from __future__ import annotations

import json
import re
from typing import Any

from support.clients.scripted_model import Script

COMMAND = "echo hello-$((40+2))"
"""Its output can't be read off it: who knows it has run the command."""

RESULT = "hello-42"

_USER = "<|im_start|>user\n"
_RESULT = "<tool_response>"


def call(tool: str, arguments: dict[str, Any]) -> str:
    """A call as the model writes it."""
    content = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"


def call_with_text(tool: str, text: str) -> str:
    """A call of a tool that takes text by a grammar, as the model writes it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": <input>\n{text}'


def last_message(prompt: str) -> str:
    """The user's last message, or the results of tools."""
    return prompt.rsplit(_USER, 1)[-1]


def uses(tool: str, arguments: dict[str, Any], result: str = RESULT) -> Script:
    """Calls a tool wherever it is on offer, and then repeats what came back of `result`, a regex.

    Without that tool (programs also ask for titles and the like) it answers `plain answer`.
    """

    def script(prompt: str) -> str:
        last = last_message(prompt)
        if last.startswith(_RESULT):
            found = re.search(result, last)
            return f"The tool said {found[0]}." if found else f"The tool failed: {last}"
        return call(tool, arguments) if f'"name": "{tool}"' in prompt else "plain answer"

    return script
