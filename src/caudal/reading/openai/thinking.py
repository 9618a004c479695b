"""How much a chat model is to think, under the names that clients have for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from caudal.chat.conversation import ReasoningEffort
from caudal.reading.fields import RequestObject

TokenBudget = Annotated[int, Field(ge=0)]


class Thinking(RequestObject):
    """Anthropic's `thinking`, which LiteLLM and others pass through."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: TokenBudget | None = None


class Reasoning(RequestObject):
    """OpenRouter's `reasoning`."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None
    exclude: bool | None = Field(None, description="Leave reasoning out of the answer.")
    max_tokens: TokenBudget | None = None


class ThinkingFields(RequestObject):
    """Fields that decide whether a model thinks and how much; at most one of them may."""

    reasoning_effort: ReasoningEffort | None = Field(
        None,
        description="A level that the model's chat template knows; a mere switch is turned off by "
        "`none` and on by others.",
    )
    thinking: Thinking | None = Field(None, description="As in Anthropic's API.")
    reasoning: Reasoning | None = Field(None, description="As in OpenRouter's API.")
    enable_thinking: bool | None = Field(None, description="As in Qwen's API.")
    include_reasoning: bool | None = None
    reasoning_format: (
        Literal["auto", "deepseek", "parsed", "hidden", "none", "raw", "deepseek-legacy"] | None
    ) = Field(
        None,
        description="As in llama.cpp's and Groq's servers: `hidden` leaves reasoning out of the "
        "answer; it is never part of the content.",
    )
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = Field(
        None, description="As in vLLM: most tokens of reasoning, then it is ended; -1: no limit."
    )

    @model_validator(mode="after")
    def _check_thinking(self) -> ThinkingFields:
        named = {name: effort for name, effort in self._efforts().items() if effort is not None}
        off = [name for name, effort in named.items() if effort == "none"]
        on = [name for name in named if name not in off]
        if off and on:
            raise ValueError(f"{off[0]} turns thinking off, but {on[0]} asks for it")
        return self

    @property
    def effort_field(self) -> str:
        """The name under which the effort was given."""
        given = (name for name, effort in self._efforts().items() if effort is not None)
        return next(given, "reasoning_effort")

    @property
    def effort(self) -> ReasoningEffort | None:
        """How much the model is to think; None leaves it to its template."""
        given = (effort for effort in self._efforts().values() if effort is not None)
        return next(given, None)

    @property
    def thinking_budget(self) -> int | None:
        """Most tokens that the model may think for; None for no limit."""
        if self.thinking_token_budget is not None:
            return None if self.thinking_token_budget == -1 else self.thinking_token_budget
        if self.thinking is not None and self.thinking.budget_tokens is not None:
            return self.thinking.budget_tokens
        return None if self.reasoning is None else self.reasoning.max_tokens

    @property
    def has_reasoning_format(self) -> bool:
        """Whether reasoning is where the request wants it."""
        return self.reasoning_format in (None, "auto", "deepseek", "parsed", "hidden")

    @property
    def shows_reasoning(self) -> bool:
        """Whether reasoning is part of the answer."""
        excluded = self.reasoning is not None and self.reasoning.exclude
        hidden = self.reasoning_format == "hidden"
        return self.include_reasoning is not False and not excluded and not hidden

    def _efforts(self) -> dict[str, ReasoningEffort | None]:
        """What each field asks for. Who merely switches thinking on asks for the middle."""
        thinking, reasoning = self.thinking, self.reasoning
        return {
            "reasoning_effort": self.reasoning_effort,
            "reasoning": None
            if reasoning is None
            else reasoning.effort or _level_of(reasoning.enabled),
            "thinking": None
            if thinking is None or thinking.type == "adaptive"
            else _level_of(thinking.type == "enabled"),
            "enable_thinking": _level_of(self.enable_thinking),
        }


def _level_of(switch: bool | None) -> ReasoningEffort | None:
    return None if switch is None else "medium" if switch else "none"
