"""Tools that Anthropic defines and clients run: the model needs their schemas, which requests lack.

The inputs are those that Anthropic's documentation gives for each tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Screen:
    """What a request says of the screen of a computer tool, in pixels."""

    width: int | None = None
    height: int | None = None
    can_zoom: bool = False


@dataclass(frozen=True)
class ClientTool:
    """What the model is told of a tool."""

    description: str
    schema: Mapping[str, Any]


_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_POINT = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _described(kind: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {**kind, "description": description}


def _bash(_: Screen) -> ClientTool:
    properties = {
        "command": _described(_STRING, "The command to run."),
        "restart": _described({"type": "boolean"}, "Start the shell anew instead."),
    }
    return ClientTool(
        "Runs a command in a bash shell that stays open between calls.", _object(properties, [])
    )


def _editor(*, can_undo: bool) -> ClientTool:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if can_undo else [])]
    properties = {
        "command": {"type": "string", "enum": commands, "description": "What to do."},
        "path": _described(_STRING, "The file or directory."),
        "file_text": _described(_STRING, "For create: what the file is to hold."),
        "old_str": _described(_STRING, "For str_replace: text that the file has exactly once."),
        "new_str": _described(_STRING, "For str_replace: what stands in its place."),
        "insert_line": _described(_INTEGER, "For insert: the line after which; 0 for the top."),
        "insert_text": _described(_STRING, "For insert: the new text."),
        "view_range": _described(_POINT, "For view: the first and last line; -1 for the end."),
    }
    return ClientTool(
        "Views files and directories, and creates and edits files.",
        _object(properties, ["command", "path"]),
    )


def _memory(_: Screen) -> ClientTool:
    commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
    properties = {
        "command": {"type": "string", "enum": commands, "description": "What to do."},
        "path": _described(_STRING, "A file or directory under /memories; not for rename."),
        "view_range": _described(_POINT, "For view: the first and last line."),
        "file_text": _described(_STRING, "For create: what the file is to hold."),
        "old_str": _described(_STRING, "For str_replace: text that the file has exactly once."),
        "new_str": _described(_STRING, "For str_replace: what stands in its place."),
        "insert_line": _described(_INTEGER, "For insert: the line after which; 0 for the top."),
        "insert_text": _described(_STRING, "For insert: the new text."),
        "old_path": _described(_STRING, "For rename: what is renamed."),
        "new_path": _described(_STRING, "For rename: its new name."),
    }
    return ClientTool(
        "Keeps files under /memories, which outlast the conversation. Look there before a task, "
        "and note what later ones will need.",
        _object(properties, ["command"]),
    )


_ACTIONS = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
_LATER_ACTIONS = (
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "triple_click",
)


def _computer(screen: Screen, *, has_later_actions: bool) -> ClientTool:
    actions = [*_ACTIONS, *(_LATER_ACTIONS if has_later_actions else ())]
    properties = {
        "coordinate": _described(_POINT, "Where, as [x, y] in pixels."),
        "text": _described(_STRING, "The text to type, or the keys to press, as in ctrl+s."),
    }
    if has_later_actions:
        directions = ["up", "down", "left", "right"]
        properties |= {
            "start_coordinate": _described(_POINT, "Where a drag begins."),
            "scroll_direction": {"type": "string", "enum": directions},
            "scroll_amount": _described(_INTEGER, "How far to scroll."),
            "duration": _described({"type": "number"}, "For hold_key and wait: seconds."),
        }
    if screen.can_zoom:
        actions.append("zoom")
        region = {"type": "array", "items": _INTEGER, "minItems": 4, "maxItems": 4}
        properties["region"] = _described(region, "For zoom: its corners, as [x0, y0, x1, y1].")
    size = f" of {screen.width} by {screen.height} pixels" if screen.width and screen.height else ""
    action = {"type": "string", "enum": actions, "description": "What to do."}
    return ClientTool(
        f"Uses the mouse and keyboard of a computer with a screen{size}, and looks at it.",
        _object({"action": action, **properties}, ["action"]),
    )


CLIENT_TOOLS: Mapping[str, Callable[[Screen], ClientTool]] = {
    "bash_20241022": _bash,
    "bash_20250124": _bash,
    "text_editor_20241022": lambda _: _editor(can_undo=True),
    "text_editor_20250124": lambda _: _editor(can_undo=True),
    "text_editor_20250429": lambda _: _editor(can_undo=False),
    "text_editor_20250728": lambda _: _editor(can_undo=False),
    "memory_20250818": _memory,
    "computer_20241022": lambda screen: _computer(screen, has_later_actions=False),
    "computer_20250124": lambda screen: _computer(screen, has_later_actions=True),
    "computer_20251124": lambda screen: _computer(screen, has_later_actions=True),
}
"""By type."""
