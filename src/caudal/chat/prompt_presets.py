"""What known agents write into system prompts that differs from request to request, and where.

Behind a few tokens that differ nothing of a prompt comes from the prefix cache. A *preset* names
what an agent is known to write there: the rules take it out, or move it behind all that stays the
same. They change that and nothing else, for an operator who asks for it, and say what they did.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from caudal.chat.conversation import Conversation, Message

ALL = "all"
"""Stands for every preset."""

_FAR = 200
"""Most characters of a line before what tells it."""

_MAX_MISSES = 8
"""Places where a rule's sign was nothing of the kind, after which no more are looked at: clients
write what is searched."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that an agent writes.

    Attributes:
        name: What it is said to be.
        sign: What is only there where it is.
        pattern: All of it, from the beginning of the line that `sign` begins in. It must look at
            no more than a bounded number of lines and characters.
        moves: Whether it goes into the first message of the user; else it goes altogether.
    """

    name: str
    sign: str
    pattern: re.Pattern[str]
    moves: bool = True

    def split(self, text: str) -> tuple[str, list[str]]:
        """A text without it, and what it was."""
        kept, found = list[str](), list[str]()
        done = place = misses = 0
        while misses < _MAX_MISSES and (place := text.find(self.sign, place)) >= 0:
            begin = max(done, text.rfind("\n", max(0, place - _FAR), place) + 1)
            match = self.pattern.match(text, begin)
            if match is None:
                misses += 1
                place += 1
                continue
            kept.append(text[done:begin])
            found.append(match.group())
            done = place = match.end()
        return ("".join([*kept, text[done:]]), found) if found else (text, found)


def _rule(name: str, sign: str, pattern: str, *, moves: bool = True) -> Rule:
    return Rule(name, sign, re.compile(pattern), moves)


_LINE = r"[^\n]{0,1000}(?:\n|\Z)"

_ENVIRONMENT = _rule(
    "environment",
    "useful information about the environment you are running in:\n<env>\n",
    r"Here is (?:some )?useful information about the environment you are running in:\n"
    r"<env>\n(?:(?!</env>)[^\n]{0,1000}\n){0,60}</env>\n?",
)
"""Folder, platform and date; of Claude Code before 2.1, and of opencode
(github.com/sst/opencode, packages/opencode/src/session/system.ts)."""

PRESETS: Mapping[str, Sequence[Rule]] = {
    # Claude Code and what is built on its SDK (NanoClaw): the billing header, whose `cch` differs
    # with each request (llama.cpp's pull requests 20623 and 21793, vllm's 36829), the countdown of
    # tokens (ollama's pull request 17918, omlx's issue 2881), the environment of newer versions and
    # the state of the repository when a session begins.
    "claude-code": (
        _rule(
            "billing-header",
            "x-anthropic-billing-header:",
            r"x-anthropic-billing-header:[^\n]*(?:\n|\Z)",
            moves=False,
        ),
        _rule(
            "tokens-left",
            "<total_tokens>",
            r"<total_tokens>\d{1,12} tokens left</total_tokens>[ ]*(?:\n|\Z)",
            moves=False,
        ),
        _ENVIRONMENT,
        _rule(
            "environment",
            "# Environment\nYou have been invoked in the following environment:",
            rf"# Environment\nYou have been invoked in the following environment:[ ]?\n"
            rf"(?:[ ]{{0,4}}- {_LINE}){{1,30}}",
        ),
        _rule(
            "git-status",
            "gitStatus: This is the git status at the start of the conversation",
            rf"gitStatus: {_LINE}(?:[^\n]{{0,1000}}\n){{0,300}}?Recent commits:(?:\n|\Z)"
            rf"(?:[0-9a-f]{{7,40}} {_LINE}){{0,20}}",
        ),
    ),
    "opencode": (_ENVIRONMENT,),
    # Versions that write the time, to the second (github.com/earendil-works/pi, issues 1873, 2013).
    "pi": (
        _rule(
            "date",
            "Current date and time: ",
            rf"Current date and time: {_LINE}Current working directory: {_LINE}",
        ),
        _rule(
            "date",
            "Current date: ",
            rf"Current date: {_LINE}Current working directory: {_LINE}",
        ),
    ),
    # github.com/openclaw/openclaw, src/agents/system-prompt.ts and issue 49700.
    "openclaw": (
        _rule(
            "date",
            "## Current Date & Time\n",
            rf"## Current Date & Time\n(?:(?![#\n]){_LINE}){{1,6}}",
        ),
        _rule(
            "runtime",
            "## Runtime\nRuntime: ",
            rf"## Runtime\nRuntime: {_LINE}(?:(?![#\n]){_LINE}){{0,4}}",
        ),
    ),
}


def chosen(names: Iterable[str]) -> Sequence[str]:
    """The presets that are meant by names.

    Raises:
        ValueError: There is none of this name.
    """
    found: dict[str, None] = {}
    for name in names:
        if name != ALL and name not in PRESETS:
            raise ValueError(f"{name!r} is no preset; there are {', '.join(PRESETS)}, and {ALL}")
        found |= dict.fromkeys(PRESETS if name == ALL else [name])
    return list(found)


def normalised(
    conversation: Conversation, presets: Collection[str]
) -> tuple[Conversation, Sequence[str]]:
    """A conversation as presets would have it, and what they have done.

    Only system messages at the beginning are looked at, and only the first message of the user gets
    anything; where there is none, nothing is moved. A message of which nothing is left goes.

    Args:
        conversation: The conversation.
        presets: Names of `PRESETS`.

    Returns:
        The conversation, the same object where nothing was found, and the names of the rules that
        found something, each behind its preset's: `claude-code.billing-header`.
    """
    messages = list(conversation.messages)
    first = next((i for i, each in enumerate(messages) if not _is_system(each)), len(messages))
    user = next((i for i in range(first, len(messages)) if messages[i].role == "user"), None)
    done: dict[str, None] = {}
    moved: list[str] = []
    for number in range(first):
        message = messages[number]
        given = message.content or ""
        texts = [given] if isinstance(given, str) else list(given)
        left = []
        for text in texts:
            for preset in presets:
                for rule in PRESETS[preset]:
                    if rule.moves and user is None:
                        continue
                    text, found = rule.split(text)
                    if found:
                        done[f"{preset}.{rule.name}"] = None
                    if rule.moves:
                        moved += found
            left.append(text)
        if left != texts:
            kept = [text for text in left if text.strip()]
            content = left[0] if isinstance(given, str) else kept
            messages[number] = replace(message, content=content if kept else None)
    if not done:
        return conversation, ()
    if moved:
        assert user is not None
        messages[user] = _with_reminder(messages[user], moved)
    messages = [each for each in messages if not (_is_system(each) and each.content is None)]
    return replace(conversation, messages=messages), list(done)


def _is_system(message: Message) -> bool:
    return message.role in ("system", "developer")


def _with_reminder(message: Message, moved: Sequence[str]) -> Message:
    """A user's message behind what the system prompt said."""
    said = "\n".join(text.strip("\n") for text in moved)
    reminder = f"<system-reminder>\n{said}\n</system-reminder>\n\n"
    content = message.content or ""
    if isinstance(content, str):
        return replace(message, content=reminder + content)
    return replace(message, content=[reminder, *content])
