"""All keys that there are, and whose they are."""

from __future__ import annotations

import contextvars
import hmac
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caudal.errors import ConfigurationError
from caudal.tenants.keys import Key, KeySource, digest_of
from caudal.tenants.rules import KeyRules, Tenant

logger = logging.getLogger("caudal.keys")

LOOK_SECONDS = 0.5
"""How often it is looked, at most, whether sources have changed and keys have expired."""


@dataclass(frozen=True, slots=True)
class _Held:
    digest: bytes
    tenant: Tenant
    expires: float | None


class KeyRing:
    """Finds whose a key is. For one thread.

    It is kept by its hash, and found by the hash of what was presented: how long that takes says
    nothing of any key, for nobody can choose the beginnings of hashes.

    Args:
        sources: Where keys come from.
        now: Unix time, which keys expire by. Clocks that are set right move that along.

    Attributes:
        on_revoked: Called with each tenant whose key isn't one any more.

    Raises:
        ConfigurationError: A source can't be read, or two say the same name or the same key.
    """

    def __init__(
        self, sources: Sequence[KeySource], *, now: Callable[[], float] = time.time
    ) -> None:
        self.on_revoked: list[Callable[[Tenant], None]] = []
        self._sources = sources
        self._now = now
        self._look_at = 0.0  # on the monotonic clock
        self._held: Mapping[bytes, _Held] = self._read()
        self._live = dict(self._held)  # without those that have expired

    @property
    def tenants(self) -> list[Tenant]:
        """All whose keys are good now."""
        return [held.tenant for held in self._live.values()]

    @property
    def names(self) -> list[str]:
        """What they are called."""
        return sorted(tenant.name for tenant in self.tenants)

    def lookup(self, presented: bytes) -> Tenant | None:
        """Whose a key is; None where it is nobody's."""
        self.look()
        held = self._find(presented)
        if held is None:
            # It may have been added just now; whoever has added it has begun to use it.
            self._follow_changes()
            held = self._find(presented)
        return None if held is None else held.tenant

    def _find(self, presented: bytes) -> _Held | None:
        digest = digest_of(presented)
        held = self._live.get(digest)
        if held is None and not presented.isascii():
            # Clients disagree on how a header carries what isn't ASCII; UTF-8 is what was hashed.
            digest = digest_of(presented.decode("latin-1").encode())
            held = self._live.get(digest)
        if held is None or not hmac.compare_digest(held.digest, digest):
            return None
        return held

    def look(self) -> None:
        """See whether sources have changed, and which keys have expired; not at every call."""
        clock = time.monotonic()
        if clock < self._look_at:
            return
        self._look_at = clock + LOOK_SECONDS
        self._follow_changes()
        self._drop_expired()

    def _follow_changes(self) -> None:
        if any(source.changed() for source in self._sources):
            contextvars.Context().run(self._follow)  # of no request in particular, as logs have it

    def _follow(self) -> None:
        try:
            self.reload()
        except ConfigurationError as error:
            logger.error("The keys stay as they were: %s", error)
        else:
            logger.info("Keys have changed; good are now: %s", ", ".join(self.names) or "none")

    def reload(self) -> None:
        """Read all sources again.

        Raises:
            ConfigurationError: One can't be read, or they contradict each other; all keys stay as
                they were.
        """
        self._take(self._read())

    def _drop_expired(self) -> None:
        now = self._now()
        if any(held.expires is not None and held.expires <= now for held in self._live.values()):
            self._take(self._held)

    def _take(self, held: Mapping[bytes, _Held]) -> None:
        now = self._now()
        before, self._held = self._live, held
        self._live = {
            digest: each
            for digest, each in held.items()
            if each.expires is None or each.expires > now
        }
        for digest, each in before.items():
            if digest not in self._live:
                for call in self.on_revoked:
                    call(each.tenant)

    def _read(self) -> dict[bytes, _Held]:
        read = [source.read() for source in self._sources]
        defaults = {name: value for each in read for name, value in each.defaults.items()}
        held: dict[bytes, _Held] = {}
        by_name: dict[str, Key] = {}
        for key in (key for each in read for key in each.keys):
            if key.name in by_name:
                other = by_name[key.name].place
                raise ConfigurationError(
                    key.place, f"there is a key {key.name!r} already ({other})"
                )
            if key.digest in held:
                other = held[key.digest].tenant.name
                raise ConfigurationError(key.place, f"it is the same key as that of {other!r}")
            rules = {**defaults, **key.rules} if key.takes_defaults else key.rules
            tenant = Tenant(key.name, key.name, KeyRules(**rules))
            by_name[key.name] = key
            held[key.digest] = _Held(key.digest, tenant, key.expires)
        return held
