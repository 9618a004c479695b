"""What a key is allowed, and who stands behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec.structs import replace

from caudal.service.context import RequestContext, smaller
from caudal.tenants.salts import salt_within


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """What a key is allowed. A limit that is None is none.

    Attributes:
        models: Names of models, adapters, aliases and routes, or patterns of them (`qwen3*`);
            empty for all.
        requests_per_minute: Requests that ask something of a model, in any 60 seconds.
        tokens_per_minute: Tokens of their prompts and answers: see `caudal.tenants.quotas`.
        concurrent_requests: Most that run at a time.
        max_waiting: Most that wait in one model's queue.
        max_prompt_tokens: Of one request.
        max_n: Answers of one request.
        max_output_tokens: Of one answer.
        priority: Lower runs first; what a request says of its own comes on top of it, and can make
            it less urgent, not more; of an admin's, both.
        weight: Its share, among those of its priority that have something to do.
        share_prefixes: With whom it shares cached prefixes: None for nobody, a word for keys of
            the same word, empty for all that have it empty.
        first_token_timeout: Seconds from arrival in which an answer must have begun.
        timeout: Seconds from arrival in which all must be done.
        admin: Whether it may change the server, and see what others do.
    """

    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_waiting: int | None = None
    max_prompt_tokens: int | None = None
    max_n: int | None = None
    max_output_tokens: int | None = None
    priority: int = 0
    weight: float = 1.0
    share_prefixes: str | None = None
    first_token_timeout: float | None = None
    timeout: float | None = None
    admin: bool = False

    @property
    def has_quota(self) -> bool:
        """Whether it is limited how much may be asked."""
        return not (
            self.requests_per_minute is None
            and self.tokens_per_minute is None
            and self.concurrent_requests is None
        )

    def allows_model(self, name: str) -> bool:
        """Whether requests may use a name."""
        return not self.models or any(fnmatchcase(name, pattern) for pattern in self.models)

    def allows_any(self, names: Iterable[str]) -> bool:
        """Whether requests may use one of the names of a model."""
        return not self.models or any(map(self.allows_model, names))


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose request it is.

    Attributes:
        id: Stable; goes into logs, the labels of metrics and salts. Never the key.
        name: For people.
        rules: What it is allowed.
    """

    id: str
    name: str
    rules: KeyRules

    def applied(self, context: RequestContext) -> RequestContext:
        """What travels with a request of this tenant.

        Args:
            context: As the request has it.
        """
        if self is ANYONE:
            return context
        rules = self.rules
        own = replace(
            context,
            tenant=self.id,
            weight=rules.weight,
            max_waiting=rules.max_waiting,
            priority=rules.priority
            + (context.priority if rules.admin else max(context.priority, 0)),
            cache_salt=salt_within(self.id, rules.share_prefixes, context.cache_salt),
            first_token_timeout=smaller(context.first_token_timeout, rules.first_token_timeout),
            timeout=smaller(context.timeout, rules.timeout),
        )
        return own.held_to(rules.max_prompt_tokens, rules.max_n, rules.max_output_tokens)


ANYONE = Tenant("anyone", "anyone", KeyRules(admin=True))
"""Who asks where no keys are set."""
