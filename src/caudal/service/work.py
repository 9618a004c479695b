"""What can be asked of a model, as plain data.

Errors name the fields of these by the words that are used here (`messages`, `prompt`, `input`,
`max_tokens`, `tools[0].parameters` …); each API calls them its own way at its edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from caudal.chat.conversation import Conversation
from caudal.errors import ParameterError
from caudal.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWork:
    """A conversation to answer.

    Attributes:
        conversation: The conversation.
        params: Sampling parameters. Their `structured_outputs` are demanded of the content: the
            model may still think first, and call tools where they are on offer.
        thinking_budget: Most tokens that the model may think for; at the last, its thinking is
            ended.
        show_prompt_ids: Tell the prompt's token ids.
        preceding: Tokens that the prompt goes on from, an earlier prompt and its answer say.
        context_length: Most tokens of the prompt, what precedes it, and the answer; None for as
            many as the model has room for.
        prediction: What the answer is thought to be: it comes sooner where it is.
    """

    conversation: Conversation
    params: SamplingParams
    thinking_budget: int | None = None
    show_prompt_ids: bool = False
    preceding: Sequence[int] = ()
    context_length: int | None = None
    prediction: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """How much of a prompt is read.

    Attributes:
        max_tokens: Most tokens of it; -1: as many as there is room for beside the answer.
        keep: Which end of it is kept.
    """

    max_tokens: int
    keep: Literal["begin", "end"] = "end"


PromptForm = Literal["plain", "whole"]
"""A prompt's text without control tokens, or with their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionWork:
    """Prompts to continue as they stand, all or none.

    Attributes:
        prompts: Text, token ids, or pieces of both in turn.
        params: Sampling parameters, of each of them.
        add_special: Whether what begins texts begins a prompt whose first piece is text.
        parse_special: Whether control tokens written in texts are control tokens.
        truncation: How much of each is read; None for all.
        show_prompt_ids: Tell the prompts' token ids, as they were read.
        show_prompt_text: Tell what these say, in this form.
        context_length: Most tokens of each with its answer; None for as many as the model has room
            for.
        suffix: What is to follow the answer to the one prompt, a text; None where nothing is. Then
            the prompt is written as the model knows it, and no other field says how.
    """

    prompts: Sequence[str | Sequence[int | str]]
    params: SamplingParams
    add_special: bool = True
    parse_special: bool = False
    truncation: Truncation | None = None
    show_prompt_ids: bool = False
    show_prompt_text: PromptForm | None = None
    context_length: int | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedWork:
    """Inputs to make vectors of, all or none.

    Attributes:
        inputs: Text, or token ids that are used as they are.
        truncate: Read only the first so many tokens of each; -1: as many as the model reads; None:
            an input that is too long is an error.
        dimensions: Cut the vectors to this size, where the model was trained for it.
        normalize: Whether vectors have length 1; None: as the model's should.
        show_token_ids: Tell the inputs' token ids, as they were read.
        prompt_name: Which of the model's prompts comes before each text; None: its default.
    """

    inputs: Sequence[str | Sequence[int]]
    truncate: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    show_token_ids: bool = False
    prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """Pairs of texts to score.

    Attributes:
        pairs: Two texts each; errors call them `text_1` and `text_2`.
        truncate: See `EmbedWork`.
        prompt_names: Which of the model's prompts come before the first and the second texts, where
            these are embedded; None: its default.
    """

    pairs: Sequence[tuple[str, str]]
    truncate: int | None = None
    prompt_names: tuple[str | None, str | None] = (None, None)


def pair_texts(text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[tuple[str, str]]:
    """Pairs to score: one text with each of many, or two lists side by side.

    Raises:
        ParameterError: The lists differ in length, or are none.
    """
    first, second = _texts("text_1", text_1), _texts("text_2", text_2)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise ParameterError(
            "text_2",
            f"text_2 has {_counted(len(second))} for {len(first)} on the other side; send as many "
            "of each, or one text that goes with all of these.",
        )
    return list(zip(first, second, strict=True))


def _texts(field: str, given: str | Sequence[str]) -> list[str]:
    """One text or several, as several; raises `ParameterError` where they are none."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list | tuple) and all(isinstance(each, str) for each in given):
        return list(given)
    raise ParameterError(field, f"{field} must be text or a list of texts.")


def _counted(texts: int) -> str:
    return "1 text" if texts == 1 else f"{texts} texts"
