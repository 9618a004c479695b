"""What a model's package says of how the model runs, checked, and as what runs it takes it.

Names and meanings of parameters are those of Ollama's Modelfile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from caudal.errors import ModelLoadError, ParameterError
from caudal.sampling_params import NO_RECOMMENDATION, RecommendedSampling
from caudal.store import StoredModel
from caudal.store.package import Package

if TYPE_CHECKING:  # a server that has its models in other processes reads no files of theirs
    from caudal.formats.lora.adapter import Adapter
    from caudal.formats.tokenizer import Tokenizer

OWN_ADAPTER = ""
"""The name of the adapter that belongs to a model. No request can name it, nor anybody unload it;
whoever names no other is answered with it."""

_CONTEXT = "num_ctx"
_LIMIT = "num_predict"
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_ENDS = ("stop", _LIMIT)
_HAVE_EFFECT = frozenset((*_SAMPLING, *_ENDS, _CONTEXT))
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFacts:
    """What a package brought.

    Attributes:
        system: What the model is told where a conversation has no system message.
        messages: How many messages all conversations begin with.
        parameters: Those that have an effect.
        without_effect: Names of those that have none here.
        adapter: The rank of the adapter that all requests are answered with, which name no other.
    """

    system: str | None = None
    messages: int = 0
    parameters: Mapping[str, Any]
    without_effect: tuple[str, ...] = ()
    adapter: int | None = None

    def __str__(self) -> str:
        """In a line; empty where it brought nothing."""
        parts = []
        if self.system is not None:
            parts.append(f"a system prompt of {len(self.system)} characters")
        if self.messages:
            parts.append("1 message" if self.messages == 1 else f"{self.messages} messages")
        if self.adapter is not None:
            parts.append(f"an adapter of rank {self.adapter}")
        parts += [f"{name} {_said(value)}" for name, value in self.parameters.items()]
        if self.without_effect:
            parts.append(f"without effect: {', '.join(self.without_effect)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedChoices:
    """What a package's parameters come to.

    Attributes:
        sampling: How tokens are drawn, and when an answer ends.
        context: Most tokens of a sequence; None where it doesn't say.
    """

    sampling: RecommendedSampling = NO_RECOMMENDATION
    context: int | None = None

    @classmethod
    def of(cls, stored: StoredModel) -> PackagedChoices:
        """Those of a model.

        Raises:
            ModelLoadError: A value can't be; names the parameter, or the message's role.
        """
        try:
            return cls.of_package(stored.package)
        except ParameterError as error:
            raise _wrong(stored, str(error)) from error

    @classmethod
    def of_package(cls, package: Package) -> PackagedChoices:
        """Those of a package.

        Raises:
            ParameterError: A value can't be; names the parameter, or the message's role.
        """
        given = package.parameters
        chosen: dict[str, Any] = {
            ours: _whole(given[theirs]) if ours in ("top_k", "seed") else given[theirs]
            for theirs, ours in _SAMPLING.items()
            if given.get(theirs) is not None
        }
        if chosen.get("seed") == -1:
            del chosen["seed"]
        stop = given.get("stop")
        if stop is not None:
            stops = [stop] if isinstance(stop, str) else stop
            # Twice the same, or none at all, as some packages of Ollama's library have it.
            chosen["stop"] = (
                tuple(dict.fromkeys(text for text in stops if text != ""))
                if isinstance(stops, list | tuple) and all(isinstance(s, str) for s in stops)
                else stops
            )
        limit = _integer(given, _LIMIT)
        if limit is not None and limit > 0:  # others mean as far as the context goes
            chosen["max_tokens"] = limit
        context = _integer(given, _CONTEXT)
        if context is not None and context < 2:
            raise ParameterError(_CONTEXT, f"{_CONTEXT} must be at least 2, but is {context}")
        for message in package.messages:
            if message.role not in _ROLES:
                roles = " or ".join(_ROLES)
                raise ParameterError(
                    "messages", f"a message's role must be {roles}, not {message.role!r:.80}"
                )
        try:
            return cls(sampling=RecommendedSampling(**chosen), context=context)
        except ParameterError as error:
            names = {ours: theirs for theirs, ours in _SAMPLING.items()}
            theirs = names.get(error.param, error.param)
            raise ParameterError(theirs, str(error).replace(error.param, theirs)) from error

    def ends(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Control tokens among the texts that end answers: no text has those, so they do it."""
        names = tokenizer.special_tokens
        return frozenset(names[text] for text in self.sampling.stop or () if text in names)

    def sampled(
        self, tokenizer: Tokenizer, recommended: RecommendedSampling | None
    ) -> RecommendedSampling:
        """How answers are generated where requests don't say otherwise.

        Args:
            tokenizer: The model's.
            recommended: What its maker recommends; None where neither he nor the package is to be
                heard on how tokens are drawn, but only on where answers end.
        """
        texts = (text for text in self.sampling.stop or () if text not in tokenizer.special_tokens)
        stop = tuple(texts) or None
        if recommended is None:
            return RecommendedSampling(stop=stop, max_tokens=self.sampling.max_tokens)
        return replace(self.sampling, stop=stop).over(recommended)


def package_facts(stored: StoredModel, adapter: Adapter | None) -> PackageFacts | None:
    """What a model's package brought; None where there is nothing to tell."""
    package = stored.package
    given = package.parameters
    facts = PackageFacts(
        system=package.system,
        messages=len(package.messages),
        parameters={name: given[name] for name in sorted(given) if name in _HAVE_EFFECT},
        without_effect=without_effect(given),
        adapter=None if adapter is None else adapter.rank,
    )
    return facts if str(facts) else None


def without_effect(names: Collection[str]) -> tuple[str, ...]:
    """Those of a package's parameters that nothing here goes by."""
    return tuple(sorted(set(names) - _HAVE_EFFECT))


def _integer(given: Mapping[str, Any], name: str) -> int | None:
    value = _whole(given.get(name))
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ParameterError(name, f"{name} must be an integer, but is {value!r:.80}")


def _whole(value: Any) -> Any:
    """A number as an integer where it is one: JSON may write 40 as 40.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong(stored: StoredModel, reason: str) -> ModelLoadError:
    return ModelLoadError(stored.name, f"the package's parameters: {reason}")


def _said(value: Any) -> str:
    return " ".join(map(repr, value)) if isinstance(value, list | tuple) else f"{value}"
