"""The forms in which the library takes prompts and conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from caudal.errors import ParameterError

Message = Mapping[str, Any]
"""One message of a conversation: `{"role": …, "content": …}`."""


class PromptDict(TypedDict, total=False):
    """A prompt as text or as token ids, not both.

    `cache_salt` keeps its cached prefix apart from prompts of other salts.
    """

    prompt: str
    prompt_token_ids: Sequence[int]
    cache_salt: str


Prompt = str | PromptDict


def parse_prompt(prompt: Prompt, where: str) -> tuple[str | list[int], str | None]:
    """Text or token ids, and the cache salt.

    Args:
        prompt: The prompt.
        where: What errors call it.

    Raises:
        ParameterError: It has none of the forms of a prompt.
    """
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    if not isinstance(prompt, Mapping) or ("prompt" in prompt) == ("prompt_token_ids" in prompt):
        raise ParameterError(
            where,
            'A prompt must be text, {"prompt": text} or {"prompt_token_ids": [ids]}.',
        )
    if unknown := prompt.keys() - PromptDict.__annotations__.keys():
        raise ParameterError(where, f"A prompt has no key {min(unknown)!r}.")
    salt = prompt.get("cache_salt")
    if not isinstance(salt, str | None):
        raise ParameterError(where, "cache_salt must be text.")
    if "prompt_token_ids" in prompt:
        ids = prompt["prompt_token_ids"]
        tokens = list(ids) if isinstance(ids, Iterable) else None
        if tokens is None or str in set(map(type, tokens)):
            raise ParameterError(where, "prompt_token_ids must be a list of token ids.")
        return tokens, salt
    text = prompt["prompt"]
    if not isinstance(text, str):
        raise ParameterError(where, f"A prompt must be text, not {type(text).__name__}.")
    return text, salt


def as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt or several, as several."""
    return prompts if isinstance(prompts, list | tuple) else [prompts]  # type: ignore[list-item]


def as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    """One conversation or several, as several.

    Raises:
        ParameterError: It is neither.
    """
    if isinstance(messages, list | tuple):
        if messages and all(isinstance(message, Mapping) for message in messages):
            return [messages]
        if all(isinstance(conversation, list | tuple) for conversation in messages):
            return messages
    raise ParameterError(
        "messages", "messages must be a list of messages, or a list of such lists."
    )
