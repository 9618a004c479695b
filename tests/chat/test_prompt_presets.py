"""What agents are known to write into system prompts goes, or moves; nothing else changes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from caudal.chat.conversation import Conversation, Message
from caudal.chat.prompt_presets import PRESETS, Rule, chosen, normalised

RULES = "You are an agent.\n\n# Rules\n- Today's date matters. <env> is a word.\n"
ENVIRONMENT = """Here is {}useful information about the environment you are running in:
<env>
  Working directory: /home/me/project
  Is directory a git repo: yes
  Platform: linux
  Today's date: {}
</env>
"""
NEWER = """# Environment
You have been invoked in the following environment:{}
 - Primary working directory: /home/me/project
   - Is a git repository: true
 - Platform: linux
 - OS Version: Linux 6.1
"""
STATUS = """gitStatus: This is the git status at the start of the conversation. Note that this \
status is a snapshot in time, and will not update during the conversation.
Current branch: main

Main branch (you will usually use this for PRs): main

Status:
M README.md

Recent commits:
04e31c6 Say what it is
2621aa8 Begin
"""
PI = """Current date and time: Monday, March 9, 2026 at 06:00:31 PM PDT
Current working directory: /home/me/project"""
CLAW = """## Current Date & Time
Time zone: Europe/Vienna
Current time: Monday, March 9th, 2026 - 18:00

"""
RUNTIME = """## Runtime
Runtime: agent=main | host=desk | os=linux | model=x | channel=telegram
Reasoning: off
"""
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};\n"
LEFT = "<total_tokens>{} tokens left</total_tokens>\n"
USER = Message(role="user", content="hey")


def of(system: str | Sequence[str], *more: Message) -> Conversation:
    messages = [Message(role="system", content=system), *(more or [USER])]
    return Conversation(messages=messages)


def done(conversation: Conversation, *presets: str) -> tuple[Sequence[Message], Sequence[str]]:
    changed, rules = normalised(conversation, chosen(presets))
    assert (changed is conversation) == (not rules)
    return changed.messages, rules


@pytest.mark.parametrize(
    ("preset", "rule", "text"),
    [
        ("claude-code", "billing-header", BILLING.format("fa690")),
        ("claude-code", "tokens-left", LEFT.format(14999436)),
    ],
)
def test_what_goes(preset: str, rule: str, text: str):
    for system in (text + RULES, RULES + text, f"{RULES}{text}{RULES}", RULES + text + text):
        [said, user], rules = done(of(system), preset)
        assert said.content == system.replace(text, "")
        assert user == USER
        assert rules == [f"{preset}.{rule}"]


@pytest.mark.parametrize(
    ("preset", "rule", "text"),
    [
        ("claude-code", "environment", ENVIRONMENT.format("", "2025-12-30")),
        ("claude-code", "environment", NEWER.format("")),
        ("claude-code", "environment", NEWER.format(" ")),
        ("claude-code", "git-status", STATUS),
        ("opencode", "environment", ENVIRONMENT.format("some ", "Mon Mar 09 2026")),
        ("pi", "date", PI),
        ("pi", "date", PI.replace(" and time", "")),
        ("openclaw", "date", CLAW.rstrip("\n") + "\n"),
        ("openclaw", "runtime", RUNTIME),
    ],
)
def test_what_moves(preset: str, rule: str, text: str):
    """Into the user's first message, and not into a later one."""
    later = [Message(role="assistant", content="yes?"), Message(role="user", content="go on")]
    reminder = f"<system-reminder>\n{text.strip()}\n</system-reminder>\n\n"
    [system, user, *rest], rules = done(of(f"{RULES}\n{text}", USER, *later), preset, "all")
    assert system.content == f"{RULES}\n"
    assert user.content == f"{reminder}hey"
    assert rest == later
    assert f"{preset}.{rule}" in rules
    middle = f"{RULES}{text.removesuffix(chr(10))}\n\n## More\n"
    left = done(of(middle), preset)[0][0].content
    assert isinstance(left, str)
    assert left.removeprefix(RULES).strip() == "## More"
    # Without a user to tell it stays where it is.
    assert done(of(RULES + text, later[0]), preset)[1] == ()


def test_parts_stay_parts_and_empty_messages_go():
    parts = [BILLING.format("1c8b4").rstrip(), RULES, STATUS]
    user = Message(role="user", content=["hey", "you"])
    [system, told], rules = done(of(parts, user), "claude-code")
    assert system.content == [RULES]
    reminder = f"<system-reminder>\n{STATUS.strip()}\n</system-reminder>\n\n"
    assert told.content == [reminder, "hey", "you"]
    assert rules == ["claude-code.billing-header", "claude-code.git-status"]
    for nothing in (parts[0], [parts[0]]):
        assert done(of(nothing), "claude-code")[0] == [USER]


@pytest.mark.parametrize(
    "text",
    [
        "The line x-anthropic-billing-header: is a header.",
        "Write <total_tokens>many tokens left</total_tokens>.",
        "gitStatus: This is the git status at the start of the conversation, it says.",
        "Current date and time: see below.\n\nCurrent working directory: none.",
        "## Runtime\nNode 22.",
        "# Environment\nYou have been invoked in the following environment:\nnone",
        "Here is useful information about the environment you are running in:\n<env>\nnothing",
    ],
)
def test_what_only_looks_like_it_stays(text: str):
    assert done(of(RULES + text), "all") == (of(RULES + text).messages, ())


def test_only_what_was_asked_for_and_only_at_the_beginning():
    text = BILLING.format("fa690") + RULES
    assert done(of(text), "opencode", "pi")[1] == ()
    assert done(of(RULES, USER, Message(role="system", content=text)), "all")[1] == ()
    assert done(of(RULES, Message(role="user", content=text)), "all")[1] == ()
    assert chosen(["pi", "all", "pi"]) == ["pi", *(name for name in PRESETS if name != "pi")]
    with pytest.raises(ValueError, match="'claude' is no preset; there are claude-code, opencode"):
        chosen(["claude"])


@pytest.mark.parametrize("rule", {rule: None for rules in PRESETS.values() for rule in rules})
def test_what_clients_write_costs_no_time(rule: Rule):
    many = 1_000_000 // len(rule.sign)
    for text in (rule.sign * many, rule.sign + "a\n" * 500_000, ("a" * 150 + rule.sign) * many):
        began = time.perf_counter()
        rule.split(text)
        assert time.perf_counter() - began < 2  # some milliseconds
