"""The models that there are, by their aliases and by routes too."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, ParameterError, UnknownModelError, UnsupportedTaskError
from caudal.routes.cascade import UNAVAILABLE, CascadeService
from caudal.routes.rules import Alias, Candidate, Cascade, Choice, Routes
from caudal.service.asking import NOBODY, Asking
from caudal.service.context import NO_CONTEXT, RequestContext
from caudal.service.forwarding_models import ForwardingModels
from caudal.service.models import Found, Models, ModelStatus
from caudal.service.service import Service

if TYPE_CHECKING:
    from caudal.models.program import Task

logger = logging.getLogger("caudal.routes")


class RoutedModels(ForwardingModels):
    """Models, and names that lead to them.

    Args:
        models: The models.
        routes: The names.
        asking: Whose request is to be routed.
    """

    def __init__(self, models: Models, routes: Routes, asking: Asking = NOBODY) -> None:
        super().__init__(models)
        self._routes = routes
        self._asking = asking

    def of_request(self, asking: Asking) -> Models:
        """See `Models`."""
        return RoutedModels(self._models, self._routes, asking)

    def change(self, routes: Routes) -> None:
        """Have other names; who asks already is led by those that there were."""
        self._routes = routes

    async def check(self) -> None:
        """See that all names lead to models that there are.

        Raises:
            ConfigurationError: One doesn't, or is a model's already.
            StoreError: It can't be known which models there are.
        """
        names = {name for definition in self._routes.definitions for name in definition.targets}
        names |= {definition.name for definition in self._routes.definitions}
        known = {name for name in names if await self._is_model(name)}
        self._routes.check_names(known.__contains__)

    async def _is_model(self, name: str) -> bool:
        try:
            await self._models.status(name)
        except UnknownModelError:
            return False
        return True

    # What there is

    async def statuses(self) -> Sequence[ModelStatus]:
        """See `Models`; aliases are names of their models, and routes stand behind these."""
        aliases: dict[str, list[str]] = {}
        routes = []
        for definition in self._routes.definitions:
            end = self._end(definition.name)
            with suppress(UnknownModelError):  # it has been removed since
                status = await self.status(end)
                if self._routes.get(end):
                    routes.append(replace(status, names=(definition.name,)))
                else:
                    aliases.setdefault(status.names[0], []).append(definition.name)
        models = []
        for status in await self._models.statuses():
            more = aliases.get(status.names[0], ())
            models.append(replace(status, names=(*status.names, *more), aliases=more))
        return [*models, *routes]

    async def status(self, name: str) -> ModelStatus:
        """See `Models`."""
        end = self._end(name)
        route = self._routes.get(end)
        if route is None:
            return await self._models.status(end)
        targets = [await self.status(target) for target in route.targets]
        limits = [each.max_model_len for each in targets if each.max_model_len is not None]
        tasks = [each.tasks for each in targets if each.tasks is not None]
        if isinstance(route, Cascade):
            tasks = [frozenset(("generate",))]
        return ModelStatus(
            names=(name,),
            state=targets[0].state,
            tasks=frozenset().union(*tasks) if tasks else None,
            max_model_len=max(limits, default=None),
            leads_to=tuple(route.targets),
        )

    def _end(self, name: str) -> str:
        """What a name stands for, over all aliases: a model, or a route."""
        while isinstance(alias := self._routes.get(name), Alias):
            name = alias.target
        return name

    @property
    def names(self) -> Sequence[str]:
        """See `Models`."""
        return [*self._models.names, *(each.name for each in self._routes.definitions)]

    # Finding models

    def loaded(self, name: str | None) -> Service | None:
        """See `Models`; a route is looked for anew, for it depends on who asks."""
        end = self._end(name) if name else name
        return None if self._routes.get(end) else self._models.loaded(end)

    def find_now(
        self, name: str | None, task: Task | None = None, *, keep_alive: float | None = None
    ) -> Found | None:
        """See `Models`."""
        end = self._end(name) if name else name
        if self._routes.get(end):
            return None
        found = self._models.find_now(end, task, keep_alive=keep_alive)
        return found if found is None or end == name else _named(found, name)

    async def resolve(
        self,
        name: str | None,
        task: Task | None = None,
        *,
        context: RequestContext = NO_CONTEXT,
        keep_alive: float | None = None,
    ) -> Found:
        """See `Models`.

        Raises:
            ParameterError: None of a route's models is for such a request.
            CaudalError: What `Models.resolve` raises; of a route, of the first that is for it.
        """
        end = self._end(name) if name else name

        async def find(target: str) -> Found:
            return await self.resolve(target, task, context=context, keep_alive=keep_alive)

        match self._routes.get(end):
            case Choice(candidates=candidates):
                assert end is not None
                names = [each.model for each in candidates if each.takes(self._asking)]
                if not names:
                    raise self._for_nobody(end, candidates)
                found, _ = await _first(names, find)
                return _named(found, found.name)
            case Cascade() as cascade:
                if task not in (None, "generate"):
                    raise UnsupportedTaskError(cascade.name, task, ["generate"])
                first, rest = await _first(cascade.stages, find)
                return CascadeService(cascade, first, rest, find, self._asking).found
            case _:
                found = await self._models.resolve(
                    end, task, context=context, keep_alive=keep_alive
                )
                return found if end == name else _named(found, name)

    def _for_nobody(self, name: str, candidates: Sequence[Candidate]) -> ParameterError:
        headers = sorted({header for each in candidates for header in each.headers})
        said = ", ".join(f"{header}: {self._asking.header(header)!r:.40}" for header in headers)
        return ParameterError(
            "model",
            f"model: none of the models of the route {name!r} is for a prompt of about "
            f"{self._asking.prompt_tokens} tokens{' with ' if said else ''}{said}.",
        )

    # Loading and unloading on demand

    async def load(self, name: str) -> None:
        """See `Models`."""
        await self._models.load(self._model(name))

    async def unload(self, name: str) -> None:
        """See `Models`."""
        await self._models.unload(self._model(name))

    def _model(self, name: str) -> str:
        end = self._end(name)
        if route := self._routes.get(end):
            names = ", ".join(route.targets)
            raise ParameterError("model", f"model: {name!r} is a route; name one of {names}.")
        return end


async def _first(
    names: Sequence[str], find: Callable[[str], Awaitable[Found]]
) -> tuple[Found, Sequence[str]]:
    """The first model that can be had, and the names behind it.

    Raises:
        CaudalError: None can be: why not the first.
    """
    reason: CaudalError | None = None
    for place, name in enumerate(names):
        try:
            return await find(name), names[place + 1 :]
        except UNAVAILABLE as error:
            logger.info("%s", error)
            reason = reason or error
    assert reason is not None, "there is a name"
    raise reason


def _named(found: Found, name: str | None) -> Found:
    """What was found, to be answered under a name that may not be its own."""
    assert name is not None, "nobody is meant where nobody is named"
    return replace(found, name=name, model=found.model or found.name)
