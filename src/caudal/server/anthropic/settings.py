"""What a message request sets beside its messages and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from caudal.reading.fields import RequestObject


class CacheControl(RequestObject):
    """Asks for what happens anyway: every prompt's beginning is kept for as long as there is room,
    whichever lifetime is named.
    """

    hints: ClassVar[frozenset[str]] = frozenset({"scope"})

    type: Literal["ephemeral"]
    ttl: str | None = None


class Thinking(RequestObject):
    """Whether the model thinks before it answers."""

    hints: ClassVar[frozenset[str]] = frozenset({"block_binding"})

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="The most tokens of thinking; without it there is no bound."
    )
    display: Literal["summarized", "omitted", "updates"] | None = Field(
        None, description="`omitted` leaves the text of thinking out; nothing is summarised."
    )

    def is_on(self, *, after_tools: bool) -> bool:
        """Whether the model is to think, in an answer to tools' results or to the user."""
        return after_tools if self.type == "between_tools" else self.type != "disabled"


class JSONOutputFormat(RequestObject):
    """The schema that an answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestObject):
    """How much effort an answer takes, and its form."""

    hints: ClassVar[frozenset[str]] = frozenset({"task_budget"})

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Where the model's chat template has levels of effort."
    )
    format: JSONOutputFormat | None = None


class Metadata(RequestObject):
    """About the request."""

    user_id: str | None = Field(None, description="Named in the server's log line of the request.")


class Thread(RequestObject):
    """Asks the server to hold the conversation, which clients hold as well."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class Threshold(RequestObject):
    """A number of tokens, tool uses or turns."""

    type: Literal["input_tokens", "tool_uses", "thinking_turns", "all"]
    value: Annotated[int, Field(ge=0)] | None = None


class ContextEdit(RequestObject):
    """Leaves something out of the prompt that the messages have; see `context_edits`."""

    hints: ClassVar[frozenset[str]] = frozenset({"instructions", "pause_after_compaction"})

    type: str
    keep: Threshold | Literal["all"] | None = None
    trigger: Threshold | None = None
    clear_at_least: Threshold | None = None
    clear_tool_inputs: bool | list[str] | None = None
    exclude_tools: list[str] | None = None


class ContextManagement(RequestObject):
    """What is left out of long conversations."""

    edits: list[ContextEdit] | None = None


BILLING: Mapping[str, Sequence[Any]] = {
    "anthropic_beta": ([],),
    "anthropic_version": (),
    "betas": ([],),
    "billing_policy": ({"type": "billing_policy"}, {"type": "billing_policy", "bill_to": "self"}),
    "fallback_credit_token": (),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Fields about Anthropic's service, not about the answer, with the values that ask for nothing."""
