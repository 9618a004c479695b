"""What can be asked of a model, as plain data.

Errors name the fields of these by the words that are used here (`messages`, `prompt`, `input`,
`max_tokens`, `tools[0].parameters` …); each API calls them its own way at its edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from caudal.chat.conversation import Conversation
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
    """

    conversation: Conversation
    params: SamplingParams
    thinking_budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """How much of a prompt is read.

    Attributes:
        max_tokens: Most tokens of it; -1: as many as there is room for beside the answer.
        keep: Which end of it is kept.
    """

    max_tokens: int
    keep: Literal["begin", "end"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionWork:
    """Prompts to continue as they stand, all or none.

    Attributes:
        prompts: Text, token ids, or pieces of both in turn.
        params: Sampling parameters, of each of them.
        add_special: Whether what begins texts begins a prompt whose first piece is text.
        parse_special: Whether control tokens written in texts are control tokens.
        truncation: How much of each is read; None for all.
    """

    prompts: Sequence[str | Sequence[int | str]]
    params: SamplingParams
    add_special: bool = True
    parse_special: bool = False
    truncation: Truncation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedWork:
    """Inputs to make vectors of, all or none.

    Attributes:
        inputs: Text, or token ids that are used as they are.
        truncate: Read only the first so many tokens of each; -1: as many as the model reads; None:
            an input that is too long is an error.
        dimensions: Cut the vectors to this size, where the model was trained for it.
        normalize: Whether vectors have length 1; None: as the model's should.
    """

    inputs: Sequence[str | Sequence[int]]
    truncate: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWork:
    """Pairs of texts to score.

    Attributes:
        pairs: Two texts each; errors call them `text_1` and `text_2`.
        truncate: See `EmbedWork`.
    """

    pairs: Sequence[tuple[str, str]]
    truncate: int | None = None
