"""What leaves a model's service: text, events and figures, all of it plain data.

Nobody needs the model's tokenizer to read it. Tokens are ids with places in the text, and come with
their bytes where log-probabilities were asked for. What is made for every token is packed as arrays
and isn't frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from caudal.chat.events import Answer, ChatEvent


class LikelyToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of the likeliest tokens in its place.

    Attributes:
        id: The token.
        logprob: Natural logarithm of its probability.
        piece: The bytes that it adds to a text.
    """

    id: int
    logprob: float
    piece: bytes


class TokenScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How likely a token was, under the model's raw distribution.

    Attributes:
        logprob: Natural logarithm of its probability.
        rank: 1 for the likeliest token, 2 for the next, …
        top: The likeliest tokens, likeliest first.
    """

    logprob: float
    rank: int
    top: Sequence[LikelyToken] = ()


class OutputToken(msgspec.Struct, array_like=True, gc=False):
    """A token and where its text begins.

    Attributes:
        id: The token.
        offset: Characters of the text before this token's.
        in_text: False for tokens that left nothing in the text: the end-of-sequence or stop
            token, and those that lie inside an excluded stop string.
        piece: The bytes that it adds to a text; told where log-probabilities were asked for.
        score: How likely it was; told likewise.
        in_reasoning: Whether a chat's token was spent on reasoning; told likewise.
    """

    id: int
    offset: int
    in_text: bool = True
    piece: bytes = b""
    score: TokenScore | None = None
    in_reasoning: bool = False


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What is new in one sequence.

    Attributes:
        index: Which of the request's sequences.
        text: Text to append; empty only where the sequence ends.
        tokens: Tokens whose text ends in `text`, in order.
        finish_reason: "stop" or "length", on the sequence's last delta.
        stop_reason: The stop string, or the stop token id, that ended the sequence; None for
            end-of-sequence, as in vLLM.
    """

    index: int
    text: str
    tokens: Sequence[OutputToken] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatDelta(msgspec.Struct, array_like=True, gc=False):
    """What is new in one sequence of a chat.

    Attributes:
        index: Which of the request's `n` sequences.
        events: What the new text means; empty only where the sequence ends.
        tokens: The tokens it came from, in order. All generated tokens are reported once, those
            of reasoning, calls and control tokens included.
        finish_reason: On the sequence's last delta: "stop", "length", or "tool_calls" where the
            answer has calls and didn't end within one.
        stop_reason: The stop string or stop token id that ended the sequence.
    """

    index: int
    events: Sequence[ChatEvent]
    tokens: Sequence[OutputToken] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class CompleteAnswer(msgspec.Struct, frozen=True):
    """One sequence's whole answer.

    Attributes:
        answer: Content, reasoning and calls.
        tokens: See `ChatDelta`.
        finish_reason: See `ChatDelta`.
        stop_reason: See `ChatDelta`.
    """

    answer: Answer
    tokens: Sequence[OutputToken]
    finish_reason: str
    stop_reason: str | int | None


class SubmittedPrompt(msgspec.Struct, frozen=True):
    """A prompt as the model gets it.

    Attributes:
        num_tokens: How many tokens it has.
        token_ids: They; empty unless asked for.
        text: What they say; empty unless asked for.
    """

    num_tokens: int
    token_ids: Sequence[int] = ()
    text: str = ""


class AnswerTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When an answer got how far, in seconds on the monotonic clock, which all processes of a
    machine share; None: it never got there.

    Attributes:
        begun: Its template began to run, or its text to be tokenised.
        submitted: It was in the engine's queue.
        scheduled: The engine began to compute its prompt.
        first_token: Its first token was there.
        last_token: Its last one was.
    """

    begun: float
    submitted: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a request took.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that came from the prefix cache; known with the first delta.
        output_tokens: Generated tokens over all sequences, up to the one that completed a stop
            string.
        reasoning_tokens: Those of them that were spent on reasoning; told of chats.
        times: What took how long; known once the answer has ended, or been given up.
        accepted_prediction_tokens: Tokens that came as the client had predicted.
        rejected_prediction_tokens: Tokens that it had predicted and that didn't come.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    times: AnswerTimes | None = None
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UnusedAnswer(msgspec.Struct, frozen=True):
    """An answer that nobody gets, for a better one took its place.

    Attributes:
        model: Whose it was.
        prompt_tokens: Tokens of its prompt.
        output_tokens: Tokens that it had when it was given up.
        mean_logprob: The mean of their log-probabilities.
    """

    model: str
    prompt_tokens: int
    output_tokens: int
    mean_logprob: float


class CascadeUsage(Usage, frozen=True):
    """What a request took that went from one model to another: the answer that the client gets.

    Attributes:
        unused: What was computed besides.
    """

    unused: Sequence[UnusedAnswer] = ()


class ConversationSize(msgspec.Struct, frozen=True):
    """What a conversation would take.

    Attributes:
        tokens: Tokens of its prompt.
        ignored: What it asks for that has no effect on this model, named as in OpenAI's API.
    """

    tokens: int
    ignored: Sequence[str] = ()


class Embedding(msgspec.Struct, frozen=True, eq=False):
    """One input's vector.

    Attributes:
        vector: Shape (dimensions,).
        tokens: Tokens of the input.
        token_ids: They, as they were read; empty unless asked for.
        times: With the first: what took how long, of all inputs together. Their first token and
            their last stand for when the last input was computed.
    """

    vector: NDArray[np.float32]
    tokens: int
    token_ids: Sequence[int] = ()
    times: AnswerTimes | None = None


class PairScore(msgspec.Struct, frozen=True):
    """How well two texts belong together.

    Attributes:
        score: The cosine of their embeddings (-1 to 1), or a cross-encoder's own score.
        tokens: Tokens that were read for it.
        times: See `Embedding`.
    """

    score: float
    tokens: int
    times: AnswerTimes | None = None


TokenForm = Literal["pieces", "spellings"]


class Tokens(msgspec.Struct, frozen=True):
    """What a text or a conversation was cut into.

    Attributes:
        ids: The tokens.
        pieces: The bytes of each, where asked for.
        spellings: Each as the vocabulary spells it, where asked for.
    """

    ids: Sequence[int]
    pieces: Sequence[bytes] = ()
    spellings: Sequence[str] = ()
