"""The models that there are, by the names that requests may use.

Models are made, fetched and deleted while others are asked, also by other processes. A name that
isn't known is looked for anew; whether what is known has changed is looked for beside what is being
asked, once a second at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Iterable

from caudal.errors import CaudalError, ParameterError, UnknownModelError
from caudal.fleet.catalogue import Catalogue
from caudal.fleet.durations import FOREVER
from caudal.fleet.member import Member
from caudal.fleet.offer import ModelOffer
from caudal.fleet.policy import Stage
from caudal.logs.request import for_no_request

LOOK_SECONDS = 1.0
"""Between two looks at whether models have changed, while any are asked."""

logger = logging.getLogger("caudal.fleet")


class Roster:
    """See the module.

    Args:
        catalogue: Which models there are.
        keep_alive: Seconds that they stay loaded where nobody says otherwise.
        on_outdated: Called when what is loaded isn't any more what there is.
    """

    def __init__(
        self, catalogue: Catalogue, keep_alive: float, on_outdated: Callable[[], None]
    ) -> None:
        self._catalogue = catalogue
        self._keep_alive = keep_alive
        self._on_outdated = on_outdated
        self._one_look = asyncio.Lock()
        self._asked = self._answered = 0  # how many times somebody wanted a look, and has had it
        self._seen: Hashable = None  # what the catalogue's mark was
        self._looked_at = -math.inf
        self._looking: asyncio.Task[None] | None = None
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
    def _offered(self) -> list[Member]:
        return [member for member in self.members if not member.deleted]

    @property
    def own_names(self) -> list[str]:
        """All of their names that are shown, each once."""
        return list(dict.fromkeys(name for each in self._offered for name in each.offer.names))

    @property
    def names(self) -> list[str]:
        """The same, and their adapters' behind them."""
        adapters = [name for member in self._offered for name in member.current_adapters()]
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
            await self._read_anew()
        for name, member in list(self._members.items()):
            if member.deleted and member.stage is Stage.UNLOADED:
                del self._members[name]
        return self.members

    async def change(self, catalogue: Catalogue) -> None:
        """Have other models.

        Raises:
            StoreError: It can't be known which; they stay as they were.
        """
        before, self._catalogue = self._catalogue, catalogue
        try:
            await self._read_anew()
        except BaseException:
            self._catalogue = before
            raise

    async def _read_anew(self) -> None:
        self._asked += 1
        asked = self._asked
        # One look at a time, so that none undoes what a later one has found; all who have come
        # before it begins share it.
        async with self._one_look:
            if self._answered < asked:
                answers = self._asked
                mark = await asyncio.to_thread(self._catalogue.mark)
                self._take(await asyncio.to_thread(self._catalogue.offers))
                self._answered, self._seen = answers, mark
                self._looked_at = asyncio.get_running_loop().time()

    def look_soon(self) -> None:
        """See to it that what has changed is known in about a second. It costs no time here."""
        if not self.grows or self._looking is not None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._looking = asyncio.get_running_loop().create_task(
                self._look(), context=for_no_request()
            )

    async def _look(self) -> None:
        try:
            if await asyncio.to_thread(self._catalogue.mark) != self._seen:
                await self.refresh()
        except CaudalError as error:  # who asks for what isn't known is told
            logger.warning("%s", error)
        finally:
            self._looking = None

    def close(self) -> None:
        """Look no more. Safe to call twice."""
        if self._looking is not None:
            self._looking.cancel()

    def _take(self, offers: Iterable[ModelOffer]) -> None:
        offered = {offer.name: offer for offer in offers}
        outdated = False
        for name, member in list(self._members.items()):
            if name in offered:
                continue
            if not member.deleted:
                member.delete(list(offered))
                outdated = True
            if member.stage is Stage.UNLOADED:
                del self._members[name]
        for name, offer in offered.items():
            known = self._members.get(name)
            if known is None:
                self._members[name] = Member(offer, self._keep_alive_of(offer))
            else:
                outdated |= known.become(offer, self._keep_alive_of(offer))
        # Own names come before others' other names, who was named first before the rest, and names
        # as they are before the same in lower case.
        named = [(name, each) for each in self._offered for name in each.offer.names]
        named += [(name, each) for each in self._offered for name in each.offer.other_names]
        self._by_name = dict(reversed(named))
        for name, member in named:
            self._by_name.setdefault(name.lower(), member)
        if outdated:
            self._on_outdated()

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
        found = self._by_name.get(name) or self._by_name.get(name.lower())
        if found is None and (full := self._catalogue.full_name(name)) is not None:
            found = self._by_name.get(full)
        return found

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
        return next((each for each in self._offered if name in each.current_adapters()), None)

    async def _default(self) -> Member:
        """The model that is meant where none is named: the first of those that were given."""
        members = self._offered or await self.refresh()
        if not members:
            raise UnknownModelError("", [])
        if self.grows and len(members) > 1:
            names = ", ".join(self.own_names)
            raise ParameterError("model", f"model: there are several models; name one of {names}.")
        return members[0]
