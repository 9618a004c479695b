"""Every error Caudal raises on purpose.

The server turns these into each API's own envelope and the command line prints them as
`caudal: …`; anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self


class CaudalError(Exception):
    """Base class: the message is written for the person who reads it, without a traceback.

    Errors can be pickled, and packed as data (`caudal.engine.wire`), with all their attributes,
    whatever their constructors take. Attributes are plain data; sequences are tuples.
    """

    @classmethod
    def restored(cls, message: str, fields: Mapping[str, Any]) -> Self:
        """An error as it was made elsewhere.

        Args:
            message: Its message.
            fields: Its attributes.
        """
        error = cls.__new__(cls, message)
        error.__dict__.update(fields)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).restored, (str(self), self.__dict__)


def in_words(error: Exception) -> str:
    """What has happened, where nobody raised an error on purpose; names no file."""
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if "can't start new thread" in str(error):  # as Python says it
        return "it can't start as many threads as it needs: memory has run out, or their number has"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


HOW_TO_ASK = "docs/models.md says how to ask for another"
"""What to do about an architecture that isn't supported."""


class ModelLoadError(CaudalError):
    """A model file is truncated, corrupt, hostile or of an unsupported kind.

    Args:
        source: The file (or model name) that was being loaded.
        reason: What is wrong, naming the key or tensor, and what would be right.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"cannot load {source}: {reason}")


class ModelTooLargeError(CaudalError):
    """There is never enough memory for a model, whatever else is unloaded.

    Args:
        model: The model.
        needed: Bytes that it needs at least.
        memory: Bytes that all models may have together.
        kept: Bytes of them that models have which stay loaded.
    """

    def __init__(self, model: str, needed: int, memory: int, kept: int = 0) -> None:
        self.model = model
        self.needed = needed
        self.memory = memory
        self.kept = kept
        others = f", {kept / 1e9:.2f} GB of it taken by models that stay loaded" if kept else ""
        super().__init__(
            f"The model {model!r} needs {needed / 1e9:.2f} GB of memory at least, but all models "
            f"together may have {memory / 1e9:.2f} GB{others}. Raise --memory, or lower "
            "--kv-memory, --prefix-memory, --max-model-len or --max-num-seqs."
        )


class ModelUnavailableError(CaudalError):
    """A model is there, but can't be had now.

    Args:
        model: The model.
        reason: Why, e.g. `was told to stop`.
    """

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"The model {model!r} {reason}.")


class ConfigurationError(CaudalError):
    """A configuration file or an option says what can't be.

    Args:
        place: Where: an option, or a file and a line.
        reason: What is wrong.
    """

    def __init__(self, place: str, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(f"{place}: {reason}" + ("" if reason.endswith("?") else "."))


class ConfigurationProblemsError(ConfigurationError):
    """Several of them.

    Args:
        errors: They.
    """

    def __init__(self, errors: Sequence[ConfigurationError]) -> None:
        self.place = errors[0].place
        self.reason = errors[0].reason
        self._errors = tuple(errors)
        CaudalError.__init__(self, "\n".join(map(str, errors)))

    @property
    def errors(self) -> Sequence[ConfigurationError]:
        """They; this one alone where it has come from another process."""
        found: tuple[ConfigurationError, ...] = self.__dict__.get("_errors", (self,))
        return found


def all_of(errors: Sequence[ConfigurationError]) -> ConfigurationError:
    """One error that tells of several; of one, that one."""
    return errors[0] if len(errors) == 1 else ConfigurationProblemsError(errors)


class SettingError(ConfigurationError):
    """The same, of an option or a variable: a command was not used as it is meant to be."""


class ModelNotFoundError(CaudalError):
    """No model of this name is in the store, and none could be resolved."""


class ModelNameError(ModelNotFoundError):
    """What was given is no model's name; says which part is wrong, and what would be right."""


class StoreError(CaudalError):
    """A model could not be fetched, verified or written to the store."""


class ForeignModelError(StoreError):
    """A model is in a directory that isn't ours to change.

    Args:
        model: The model.
        directory: Whose it is, and where.
        remedy: The command that removes it.
    """

    def __init__(self, model: str, directory: str, remedy: str) -> None:
        self.model = model
        self.remedy = remedy
        super().__init__(
            f"{model} is Ollama's ({directory}), which Caudal leaves alone. Remove it with: "
            f"{remedy}"
        )


class ConversionError(CaudalError):
    """A model can't be converted, or not to what was asked for; the message says why."""


class ParameterError(CaudalError):
    """A request parameter is invalid; becomes a 400 that names it.

    Args:
        param: The field's name as the client sent it, e.g. `top_p`.
        message: What was wrong and which values are allowed.
    """

    def __init__(self, param: str, message: str) -> None:
        self.param = param
        super().__init__(message)


class ContextOverflowError(ParameterError):
    """The prompt, or the prompt and the tokens asked for, exceeds `max_model_len`.

    Args:
        param: The field to blame, e.g. `messages`, `prompt` or `max_tokens`.
        max_model_len: The most tokens one sequence may have.
        prompt_tokens: Tokens in the prompt.
        max_tokens: Tokens asked for, where the request named a number.
        at_least: `prompt_tokens` is only a lower bound: the text is too long to count.
    """

    def __init__(
        self,
        param: str,
        max_model_len: int,
        prompt_tokens: int,
        max_tokens: int | None = None,
        *,
        at_least: bool = False,
    ) -> None:
        self.max_model_len = max_model_len
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        if max_tokens is None:
            count = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
            asked = f"your prompt has {count} tokens and needs room for at least one more"
        else:
            asked = (
                f"you asked for {prompt_tokens + max_tokens} tokens "
                f"({prompt_tokens} in the prompt, {max_tokens} to generate)"
            )
        super().__init__(
            param,
            f"This model's maximum context length is {max_model_len} tokens, but {asked}. "
            "Shorten the prompt or ask for fewer tokens.",
        )


class OverLimitError(ParameterError):
    """A request asks for more than it may; to ask again changes nothing.

    Args:
        param: The field to blame.
        message: How much it may ask for.
        limit: The limit's name, as `docs/limits.md` has it.
    """

    def __init__(self, param: str, message: str, limit: str) -> None:
        self.limit = limit
        super().__init__(param, message)


class PromptLimitError(ContextOverflowError):
    """A request's prompts have more tokens than it may send, whatever the model has room for.

    Args:
        param: The field to blame.
        limit: Most tokens.
        prompt_tokens: Tokens that there are.
    """

    def __init__(self, param: str, limit: int, prompt_tokens: int) -> None:
        self.max_model_len = limit
        self.prompt_tokens = prompt_tokens
        self.max_tokens = None
        # In words that clients look for, to go on with less.
        ParameterError.__init__(
            self,
            param,
            f"The maximum context length of a request's prompt is {limit} tokens here, but yours "
            f"has {prompt_tokens}. Shorten it.",
        )


class InputTooLongError(ParameterError):
    """A text to embed or score has more tokens than the model reads.

    Args:
        param: The field to blame, e.g. `input[3]`.
        limit: Most tokens of an input.
        tokens: Tokens it has, where they were counted.
        characters: Its length, where counting tokens wasn't worth it.
    """

    def __init__(self, param: str, limit: int, tokens: int = 0, *, characters: int = 0) -> None:
        size = f"{tokens} tokens" if tokens else f"{characters} characters"
        super().__init__(
            param,
            f"{param} has {size}, but at most {limit} tokens are read. Shorten it, or let it be "
            "cut by sending truncate_prompt_tokens.",
        )


class TemplateError(CaudalError):
    """A chat template refused the messages, in its own words, or is wrong, or takes too much.

    Args:
        message: What happened.
        param: The field to blame: `chat_template` where a request brought the template.
    """

    def __init__(self, message: str, param: str = "messages") -> None:
        self.param = param
        super().__init__(message)


class TemplateProcessError(CaudalError):
    """Chat templates can't be run: their processes can't be started, or not any more."""


class LimitError(CaudalError):
    """A limit refuses a request, or has ended it; another may well be answered.

    Args:
        limit: The limit's name, as `docs/limits.md` has it.
        message: What was too much, and how much may be.
        status: HTTP's: 413 where the request is too large, 429 where whoever asks has had their
            share, 503 where the server has too much to do, 504 where the request has taken too
            long.
        retry_after: Seconds after which retrying is sensible; None where that can't be known.
    """

    def __init__(
        self,
        limit: str,
        message: str,
        *,
        status: Literal[413, 429, 503, 504] = 429,
        retry_after: int | None = None,
    ) -> None:
        self.limit = limit
        self.status = status
        self.retry_after = retry_after
        super().__init__(message)


class QueueFullError(LimitError):
    """As many requests wait as may; the client should retry after a moment.

    Args:
        most: How many may wait.
        retry_after: Seconds after which retrying is sensible.
        what: Which queue.
        limit: The limit's name.
    """

    def __init__(
        self,
        most: int,
        retry_after: int,
        what: str = "The server's queue",
        *,
        limit: str = "max_queue",
    ) -> None:
        self.most = most
        super().__init__(
            limit,
            f"{what} is full ({most} requests waiting). Retry in {retry_after} s.",
            retry_after=retry_after,
        )


class RequestTimeoutError(LimitError):
    """A request's deadline passed before its answer was complete.

    Args:
        message: What was missing, and after how long.
        limit: Which deadline: `timeout` or `first_token_timeout`.
        retry_after: Seconds after which retrying is sensible.
    """

    def __init__(self, message: str, limit: str = "timeout", retry_after: int = 1) -> None:
        super().__init__(limit, message, status=504, retry_after=retry_after)


class KeyRevokedError(CaudalError):
    """The key of a request isn't one any more."""

    def __init__(self) -> None:
        super().__init__("The API key of this request has been revoked, or has expired.")


class EngineDeadError(CaudalError):
    """The engine stopped after an internal failure and takes no more requests."""


class WorkerEndedError(EngineDeadError):
    """The process that a model runs in has ended, and what it was asked with it.

    Args:
        model: The model.
        reason: Why, e.g. `has crashed (SIGSEGV)`.
        retry_after: Seconds after which it is sensible to try again; None where it isn't.
    """

    def __init__(self, model: str, reason: str, retry_after: int | None = None) -> None:
        self.model = model
        self.reason = reason
        self.retry_after = retry_after
        again = "" if retry_after is None else f" Retry in {retry_after} s."
        super().__init__(f"The process of the model {model!r} {reason}.{again}")


class RequestFailedError(CaudalError):
    """A request ended without its answer because the model could not be run on it."""


class UnknownModelError(CaudalError):
    """A request names a model that is not served.

    Args:
        name: The name.
        served: The names that there are.
    """

    def __init__(self, name: str, served: Sequence[str]) -> None:
        self.name = name
        self.served = tuple(served)
        there = f"This server serves: {', '.join(served)}."
        if not served:
            there = "There are none on this machine yet; fetch one with: caudal pull smollm2"
        super().__init__(f"The model {name[:80]!r} does not exist. {there}")


class UnknownAdapterError(CaudalError):
    """A request asks for an adapter that is not loaded, or not any more.

    Args:
        name: The adapter's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"The lora adapter {name[:80]!r} cannot be found.")


class AdapterExistsError(CaudalError):
    """An adapter is to be loaded under a name that requests use already.

    Args:
        name: The name.
        is_adapter: Whether it is an adapter's, which another may replace.
    """

    def __init__(self, name: str, *, is_adapter: bool = True) -> None:
        self.name = name
        self.is_adapter = is_adapter
        message = f"There is a model {name[:80]!r}: an adapter needs a name of its own."
        if is_adapter:
            message = (
                f"The lora adapter {name[:80]!r} has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True."
            )
        super().__init__(message)


class AdapterNotFoundError(CaudalError):
    """There is no file of an adapter where it should be.

    Args:
        name: What the adapter was to be called.
        path: Where it should be.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        super().__init__(f"Loading lora {name[:80]} failed: No adapter found for {path[:400]}")


class UnsupportedTaskError(CaudalError):
    """A model is asked for what it can't do.

    Args:
        name: The model.
        task: What it was asked for.
        tasks: What it can do.
    """

    def __init__(self, name: str, task: str, tasks: Sequence[str]) -> None:
        self.name = name
        self.task = task
        self.tasks = tuple(tasks)
        deeds = {"generate": "generate text", "embed": "make embeddings", "score": "score texts"}
        can = " and ".join(deeds[each] for each in tasks)
        self.verdict = f"The model {name!r} can't {deeds[task]}."
        super().__init__(f"{self.verdict} It can {can}.")
