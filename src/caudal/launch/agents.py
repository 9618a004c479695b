"""The agents that `caudal launch` knows. docs/clients.md says which versions were tried."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from caudal.launch.setup import KEY_VARIABLE, NO_KEY, SettingsFile, Setup, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A program.

    Attributes:
        name: What it is called here.
        title: What its makers call it.
        program: Its command.
        places: Where installers put it that add nothing to `PATH`, below the user's home.
        install: How to get it.
        least_context: Tokens that it sends before anybody has said anything, about; 0 where nobody
            has counted.
        set_up: What it has to be told; gets the user's home too.
    """

    name: str
    title: str
    program: str
    install: str
    set_up: Callable[[Target, Path], Setup]
    places: tuple[str, ...] = ()
    least_context: int = 0


def _claude(target: Target, _: Path) -> Setup:
    models = ("OPUS", "SONNET", "HAIKU")
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key_or_none,
        "ANTHROPIC_API_KEY": "",  # of Anthropic, if there is one: it would be sent here instead
        **{f"ANTHROPIC_DEFAULT_{model}_MODEL": target.model for model in models},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        # What differs from request to request at the prompt's beginning or in it keeps all that
        # follows from being reused.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context is not None:
        environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
    return Setup(environment=environment, arguments=("--model", target.model))


def _codex(target: Target, _: Path) -> Setup:
    values: dict[str, str | int] = {
        "model_provider": "caudal",
        "model_providers.caudal.name": "Caudal",
        "model_providers.caudal.base_url": target.openai_url,
        "model_providers.caudal.wire_api": "responses",
    }
    environment = {}
    if target.key is not None:
        values["model_providers.caudal.env_key"] = KEY_VARIABLE
        environment[KEY_VARIABLE] = target.key
    if target.context is not None:
        values["model_context_window"] = target.context
    arguments = [word for key, value in values.items() for word in ("-c", _toml(key, value))]
    return Setup(environment=environment, arguments=(*arguments, "-m", target.model))


def _toml(key: str, value: str | int) -> str:
    return f"{key}={json.dumps(value)}"  # strings and numbers are written alike in both


def _opencode(target: Target, _: Path) -> Setup:
    model: dict[str, object] = {"name": target.model}
    if target.context is not None:
        model["limit"] = {"context": target.context, "output": target.context // 4}
    options = {"baseURL": target.openai_url, "apiKey": f"{{env:{KEY_VARIABLE}}}"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Caudal",
        "options": options,
        "models": {target.model: model},
    }
    content = {"model": f"caudal/{target.model}", "provider": {"caudal": provider}}
    return Setup(
        environment={
            "OPENCODE_CONFIG_CONTENT": json.dumps(content),
            KEY_VARIABLE: target.key_or_none,
        }
    )


def _openai_environment(target: Target) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": target.openai_url,
        "OPENAI_API_KEY": target.key_or_none,
        "OPENAI_MODEL": target.model,
    }


def _qwen(target: Target, _: Path) -> Setup:
    return Setup(
        environment=_openai_environment(target),
        arguments=("--auth-type", "openai", "--model", target.model),
    )


def _copilot(target: Target, _: Path) -> Setup:
    environment = {
        "COPILOT_PROVIDER_BASE_URL": target.openai_url,
        "COPILOT_PROVIDER_API_KEY": target.key or "",
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_MODEL": target.model,
    }
    return Setup(environment=environment, arguments=("--model", target.model))


def _aider(target: Target, _: Path) -> Setup:
    environment = {"OPENAI_API_BASE": target.openai_url, "OPENAI_API_KEY": target.key_or_none}
    return Setup(environment=environment, arguments=("--model", f"openai/{target.model}"))


def _pi(target: Target, home: Path) -> Setup:
    model: dict[str, object] = {"id": target.model}
    if target.context is not None:
        model["contextWindow"] = target.context
    provider = {
        "baseUrl": target.openai_url,
        "api": "openai-completions",
        "apiKey": NO_KEY if target.key is None else f"${KEY_VARIABLE}",
        "models": [model],
    }
    return Setup(
        environment={} if target.key is None else {KEY_VARIABLE: target.key},
        arguments=("--provider", "caudal", "--model", target.model),
        settings=SettingsFile(
            path=home / ".pi" / "agent" / "models.json",
            entries={("providers", "caudal"): provider},
        ),
    )


AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent(
            name="claude",
            title="Claude Code",
            program="claude",
            places=(".local/bin", ".claude/local"),
            install="npm install -g @anthropic-ai/claude-code",
            least_context=12_000,
            set_up=_claude,
        ),
        Agent(
            name="codex",
            title="Codex",
            program="codex",
            install="npm install -g @openai/codex",
            least_context=6_000,
            set_up=_codex,
        ),
        Agent(
            name="opencode",
            title="opencode",
            program="opencode",
            places=(".opencode/bin",),
            install="npm install -g opencode-ai",
            set_up=_opencode,
        ),
        Agent(
            name="qwen",
            title="Qwen Code",
            program="qwen",
            install="npm install -g @qwen-code/qwen-code",
            set_up=_qwen,
        ),
        Agent(
            name="pi",
            title="pi",
            program="pi",
            install="npm install -g @earendil-works/pi-coding-agent",
            set_up=_pi,
        ),
        Agent(
            name="copilot",
            title="Copilot CLI",
            program="copilot",
            places=(".local/bin",),
            install="npm install -g @github/copilot",
            set_up=_copilot,
        ),
        Agent(
            name="aider",
            title="aider",
            program="aider",
            places=(".local/bin",),
            install="pip install aider-chat",
            set_up=_aider,
        ),
    )
}
"""By name, in the order in which they are shown."""
