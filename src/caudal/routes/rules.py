"""What aliases and routes are, and whether they make sense together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from caudal.errors import ConfigurationError
from caudal.service.asking import Asking

JUDGED_TOKENS = 512
"""Tokens of an answer by which a cascade judges it at the latest: more of them change the mean
little, and who asked is waiting."""

Place = Callable[[], str]
"""Says where something was written, for those who wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another name of a model, an adapter or a route.

    Attributes:
        name: The name.
        target: What it stands for.
        place: Where that was said.
    """

    name: str
    target: str
    place: Place = field(compare=False)

    @property
    def targets(self) -> Sequence[str]:
        """What it leads to."""
        return (self.target,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One of the models that a route leads to, and which requests it is for.

    Attributes:
        model: Its name.
        max_prompt_tokens: Longest prompt; see `Asking.prompt_tokens`.
        headers: What requests must say in headers: the values that will do, by name.
    """

    model: str
    max_prompt_tokens: int | None = None
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def takes(self, asking: Asking) -> bool:
        """Whether a request is for it."""
        return all(asking.header(name) in values for name, values in self.headers.items()) and (
            self.max_prompt_tokens is None or asking.prompt_tokens <= self.max_prompt_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A route that sends a request to the first model that it is for, and that can be had.

    Attributes:
        name: Its name.
        candidates: The models.
        place: Where that was said.
    """

    name: str
    candidates: Sequence[Candidate]
    place: Place = field(compare=False)

    @property
    def targets(self) -> Sequence[str]:
        """What it leads to."""
        return [candidate.model for candidate in self.candidates]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """A route that asks one model after another until one is sure of its answer.

    Attributes:
        name: Its name.
        stages: The models, the cheapest first; two at least.
        min_logprob: Mean log-probability of an answer's tokens from which on it is good enough.
        judged_tokens: Tokens by which a longer answer is judged before it is complete.
        place: Where that was said.
    """

    name: str
    stages: Sequence[str]
    min_logprob: float
    judged_tokens: int = JUDGED_TOKENS
    place: Place = field(compare=False)

    @property
    def targets(self) -> Sequence[str]:
        """What it leads to."""
        return self.stages


Definition = Alias | Choice | Cascade


class Routes:
    """Aliases and routes, by their names.

    Args:
        definitions: They.

    Raises:
        ConfigurationError: Two have the same name, or one leads to itself.
    """

    def __init__(self, definitions: Iterable[Definition] = ()) -> None:
        self._by_name: dict[str, Definition] = {}
        for each in definitions:
            if each.name in self._by_name:
                raise ConfigurationError(
                    each.place(), f"there is an alias or a route {each.name!r} already"
                )
            self._by_name[each.name] = each
        for each in self.definitions:
            self._check_ends(each, each.name, [])

    def __bool__(self) -> bool:
        return bool(self._by_name)

    @property
    def definitions(self) -> Sequence[Definition]:
        """All of them."""
        return list(self._by_name.values())

    def get(self, name: str | None) -> Definition | None:
        """What there is of a name."""
        return self._by_name.get(name) if name else None

    def check_names(self, exists: Callable[[str], bool]) -> None:
        """See that all names lead somewhere, and that none is a model's.

        Args:
            exists: Whether there is a model of a name.

        Raises:
            ConfigurationError: One doesn't, or is.
        """
        for each in self.definitions:
            if exists(each.name):
                raise ConfigurationError(each.place(), f"there is a model {each.name!r} already")
            for target in each.targets:
                if target not in self._by_name and not exists(target):
                    raise ConfigurationError(
                        each.place(), f"{each.name!r} leads to {target!r}, which does not exist"
                    )

    def _check_ends(self, first: Definition, name: str, way: Sequence[str]) -> None:
        """Raises `ConfigurationError` where a name leads back to itself."""
        if name in way:
            circle = " -> ".join([*way[way.index(name) :], name])
            raise ConfigurationError(first.place(), f"{first.name!r} leads in a circle: {circle}")
        for target in definition.targets if (definition := self.get(name)) else ():
            self._check_ends(first, target, [*way, name])
