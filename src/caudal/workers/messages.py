"""What a worker and whoever asks it say to each other, as packed by `caudal.engine.wire`.

A call has a number and is answered once, or cancelled. What it takes and gives are packed by
themselves, as the types in `METHODS`. Answers that are being generated go on after their call: what
is new in all of them after an iteration is one message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from caudal.chat.conversation import Conversation
from caudal.engine.stats import EngineStats
from caudal.engine.tiers.figures import PrefixCacheFigures, PrefixCacheReset, SpaceChoice
from caudal.engine.wire import ErrorData
from caudal.errors import CaudalError, in_words
from caudal.loading.options import LoadOptions
from caudal.service.answers import (
    ChatDelta,
    CompleteAnswer,
    ConversationSize,
    Delta,
    Embedding,
    OutputToken,
    PairScore,
    SubmittedPrompt,
    TokenForm,
    Tokens,
    Usage,
)
from caudal.service.context import RequestContext
from caudal.service.info import AdapterInfo, ServiceInfo
from caudal.service.work import ChatWork, CompletionWork, EmbedWork, ScoreWork
from caudal.structured_outputs import StructuredOutputsParams
from caudal.workers.launcher import LoadProgress, ModelMemory, ModelPlan, ModelSource

D = TypeVar("D")

INTERNAL = "internal"
"""The kind of an error that nobody raised on purpose."""


class RemoteFailureError(RuntimeError):
    """Something failed in a worker that shouldn't have; the log has its traceback."""


class Call(msgspec.Struct, tag=0, array_like=True):
    """To a worker: do something.

    Attributes:
        call: Its number.
        method: A name of `METHODS`.
        arguments: What it takes, packed.
    """

    call: int
    method: str
    arguments: bytes


class Cancel(msgspec.Struct, tag=1, array_like=True):
    """To a worker: nobody waits for a call any more, nor reads answers that it began."""

    call: int


class Read(msgspec.Struct, tag=2, array_like=True):
    """To a worker: an answer is read, and so many more pieces of news of it have room."""

    answer: int
    pieces: int


class Returned(msgspec.Struct, tag=0, array_like=True):
    """Of a worker: what a call gives, packed."""

    call: int
    result: bytes


class Failed(msgspec.Struct, tag=1, array_like=True):
    """Of a worker: what a call raises."""

    call: int
    error: ErrorData


class News(msgspec.Struct, Generic[D], array_like=True, gc=False):
    """What an iteration brings an answer.

    Attributes:
        answer: Its number.
        deltas: What is new.
        usage: The request's figures.
        prompt_tokens: With the first; see `RunningAnswer.prompt_tokens`.
        ended: Whether there will be no more.
        error: Why, where it failed.
    """

    answer: int
    deltas: Sequence[D]
    usage: Usage
    prompt_tokens: Sequence[OutputToken] = ()
    ended: bool = False
    error: ErrorData | None = None


class Updates(msgspec.Struct, tag=2, array_like=True):
    """Of a worker: what is new in all answers that are read."""

    texts: Sequence[News[Delta]]
    chats: Sequence[News[ChatDelta]]


class Loading(msgspec.Struct, tag=3, array_like=True):
    """Of a worker: how far its model's loading is."""

    progress: LoadProgress


class Ending(msgspec.Struct, tag=4, array_like=True):
    """Of a worker: it is about to end, and why; the end of a sentence about its process."""

    reason: str


ToWorker = Call | Cancel | Read
OfWorker = Returned | Failed | Updates | Loading | Ending


class BegunAnswer(msgspec.Struct, array_like=True):
    """An answer that is being generated.

    Attributes:
        answer: Its number.
        prompt: See `RunningAnswer`.
        usage: Likewise.
        ignored: See `RunningChat`.
    """

    answer: int
    prompt: SubmittedPrompt
    usage: Usage
    ignored: Sequence[str] = ()


class CollectedChat(msgspec.Struct, array_like=True):
    """A whole answer; see `RunningChat`."""

    answers: Sequence[CompleteAnswer]
    usage: Usage
    prompt_tokens: Sequence[OutputToken]


METHODS: dict[str, tuple[Any, Any]] = {
    "plan": (tuple[ModelSource, LoadOptions], ModelPlan),
    "open": (tuple[int | None], ModelMemory),
    "info": (tuple[()], ServiceInfo),
    "stats": (tuple[()], EngineStats),
    "metrics": (tuple[()], bytes),
    "chat": (tuple[ChatWork, RequestContext], BegunAnswer),
    "complete": (tuple[CompletionWork, RequestContext], list[BegunAnswer]),
    "collect": (tuple[int], CollectedChat),
    "close": (tuple[int], Usage | None),
    "embed": (tuple[EmbedWork, RequestContext], list[Embedding]),
    "score": (tuple[ScoreWork, RequestContext], list[PairScore]),
    "tokenize": (tuple[str, bool, bool, TokenForm | None], Tokens),
    "tokenize_chat": (tuple[Conversation, bool, TokenForm | None], Tokens),
    "detokenize": (tuple[list[int]], str),
    "measure": (tuple[Conversation, StructuredOutputsParams | None], ConversationSize),
    "render": (tuple[Conversation], str),
    "prefix_cache": (tuple[()], PrefixCacheFigures),
    "reset_prefix_cache": (tuple[SpaceChoice], PrefixCacheReset),
    "adapters": (tuple[()], list[AdapterInfo]),
    "load_adapter": (tuple[str, str, bool, int | None], list[AdapterInfo]),
    "unload_adapter": (tuple[str], list[AdapterInfo]),
    "shutdown": (tuple[()], None),
}
"""What may be asked of a worker: what each method takes, and what it gives."""


def error_data(error: Exception) -> ErrorData:
    """What crosses of an error."""
    if isinstance(error, CaudalError):
        return ErrorData.of(error)
    return ErrorData(INTERNAL, f"{in_words(error)} (in the model's process)", {})


def raised(data: ErrorData) -> Exception:
    """The error that crossed.

    Raises:
        ValueError: There is no error of this kind.
    """
    return RemoteFailureError(data.message) if data.kind == INTERNAL else data.error()
