"""The models that there are, by the names that requests may use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from caudal.errors import ParameterError, UnknownModelError
from caudal.fleet.catalogue import Catalogue
from caudal.fleet.durations import FOREVER
from caudal.fleet.member import Member, ModelOffer
from caudal.fleet.policy import Stage


class Roster:
    """See the module.

    Args:
        catalogue: Which models there are.
        keep_alive: Seconds that they stay loaded where nobody says otherwise.
    """

    def __init__(self, catalogue: Catalogue, keep_alive: float) -> None:
        self._catalogue = catalogue
        self._keep_alive = keep_alive
        self._members: dict[str, Member] = {}  # by their own names, in the catalogue's order
        self._by_name: dict[str, Member] = {}

    @property
    def grows(self) -> bool:
        """Whether there may be other models later."""
        return self._catalogue.grows

    @property
    def serves_one(self) -> bool:
        """Whether there is one model, and never another."""
        return not self.grows and len(self._members) == 1

    @property
    def members(self) -> list[Member]:
        """All models, as they were when somebody looked last."""
        return list(self._members.values())

    @property
    def own_names(self) -> list[str]:
        """All of their names that are shown, each once."""
        return list(dict.fromkeys(name for member in self.members for name in member.offer.names))

    @property
    def names(self) -> list[str]:
        """The same, and their adapters' behind them."""
        adapters = [name for member in self.members for name in member.current_adapters()]
        return list(dict.fromkeys([*self.own_names, *adapters]))

    @property
    def keep_alive(self) -> float:
        """Seconds that models stay where no request says otherwise: the least of them."""
        kept = [member.default_keep_alive for member in self.members]
        return min(kept, default=self._keep_alive)

    async def refresh(self) -> list[Member]:
        """All models, as they are now.

        Raises:
            StoreError: That can't be known.
        """
        if self.grows or not self._members:
            self._take(await asyncio.to_thread(self._catalogue.offers))
        return self.members

    def _take(self, offers: Iterable[ModelOffer]) -> None:
        offered = {offer.name: offer for offer in offers}
        for name, member in list(self._members.items()):
            if name not in offered and member.stage is Stage.UNLOADED and not member.waiters:
                del self._members[name]
        for name, offer in offered.items():
            known = self._members.get(name)
            if known is None:
                self._members[name] = Member(offer, self._keep_alive_of(offer))
            elif known.stage is Stage.UNLOADED:
                known.offer = offer  # it may have been fetched anew
        # Own names come before others' other names, and who was named first before the rest.
        self._by_name = {}
        for member in self.members:
            for name in member.offer.names:
                self._by_name.setdefault(name, member)
        for member in self.members:
            for name in member.offer.other_names:
                self._by_name.setdefault(name, member)

    def _keep_alive_of(self, offer: ModelOffer) -> float:
        if offer.keep_alive is not None:
            return offer.keep_alive
        return FOREVER if offer.pinned else self._keep_alive

    def by_own_name(self, name: str) -> Member:
        """The model of its own name, which there is."""
        return self._members[name]

    def known(self, name: str | None) -> Member | None:
        """The model of a name, or the default, as far as that is known without looking."""
        if name:
            return self.named(name)
        return next(iter(self._members.values())) if self.serves_one else None

    def named(self, name: str) -> Member | None:
        """The model whose own name this is, and no adapter's."""
        return self._by_name.get(name) or self._by_name.get(name.lower())

    async def find(self, name: str | None) -> Member:
        """The model of a name, of one of its adapters, or the default.

        Raises:
            UnknownModelError: There is none.
            ParameterError: There are several, and none is named.
            StoreError: It can't be known which there are.
        """
        if not name:
            return await self._default()
        found = self._find(name)
        if found is None:
            await self.refresh()
            found = self._find(name)
        if found is None:
            raise UnknownModelError(name, self.names)
        return found

    def _find(self, name: str) -> Member | None:
        found = self.named(name)
        if found is not None:
            return found
        return next((each for each in self.members if name in each.current_adapters()), None)

    async def _default(self) -> Member:
        """The model that is meant where none is named: the first of those that were given."""
        members = self.members or await self.refresh()
        if not members:
            raise UnknownModelError("", [])
        if self.grows and len(members) > 1:
            names = ", ".join(self.own_names)
            raise ParameterError("model", f"model: there are several models; name one of {names}.")
        return members[0]
