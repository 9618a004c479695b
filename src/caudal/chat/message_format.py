"""How answers are written that are a row of messages, each with a header that says what it is.

What follows `<|start|>` is a header, up to `<|message|>`. The prompt ends with
`<|start|>assistant`, so an answer begins within its first message's header. gpt-oss's format is in
`caudal.chat.harmony`, Muse Glimmer's in `caudal.chat.muse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from caudal.chat.calls.formats import CallSyntax
from caudal.chat.calls.reading import Reader
from caudal.engine.thinking import ThinkingMessages

START = "<|start|>"
MESSAGE = "<|message|>"

MAX_HEADER = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFormat:
    """How a model writes its messages. Headers are matched from their beginning.

    Attributes:
        name: In `--tool-parser` and `--reasoning-parser`.
        signs: Texts in a template that give the format away, where it has all of them.
        ends: What ends a message, beside the next one's `START`.
        markers: Texts that steer the parser; where they are control tokens, it has to see them.
        header_begins: What the first header may begin with; else the answer is no message.
        call: Matches the header of a call; its first group is the tool's name.
        thought: Matches the header of what is thought, and perhaps of some calls.
        calls_begin: What the body of a call begins with.
        read: Reads what follows that; None where the body is the arguments, as JSON.
        syntax: How enforced calls are written, from the header on.
        json_syntax: The same with all arguments as JSON, for schemas that `syntax` can't hold.
        thought_begin: The first header, of a thought.
        thought_end: Ends a thought, up to what the next header begins with.
        answer_begin: The first header, of what is no thought and no call.
        recipients: Names in headers that are no tools'.
        efforts: How much the model knows to think.
    """

    name: str
    signs: tuple[str, ...]
    ends: tuple[str, ...]
    markers: tuple[str, ...]
    header_begins: tuple[str, ...]
    call: re.Pattern[str]
    thought: re.Pattern[str]
    calls_begin: str = ""
    read: Reader | None = None
    syntax: CallSyntax
    json_syntax: CallSyntax
    thought_begin: str
    thought_end: str
    answer_begin: str
    recipients: frozenset[str] = frozenset()
    efforts: tuple[str, ...]

    def thinking(self, *, with_calls: bool, prompt_end: str) -> ThinkingMessages:
        """How reasoning is told, for those who bound it: as by a `MessagesParser`."""
        calls = f"(?!{self.call.pattern})" if with_calls else ""
        return ThinkingMessages(
            start=START,
            body=MESSAGE,
            ends=self.ends,
            header_begins=self.header_begins,
            max_header=MAX_HEADER,
            pattern=calls + self.thought.pattern,
            ending=self.thought_end,
            begun=begun_header(prompt_end),
        )

    def called_in(self, header: str) -> str | None:
        """The tool that a header calls."""
        found = self.call.match(header)
        return None if found is None else found[1]


def begun_header(prompt_end: str) -> str:
    """Of a message that is to be continued, only the header matters: its text is not ours."""
    header, message, _ = prompt_end.rpartition(MESSAGE)
    return header + message if message else prompt_end
