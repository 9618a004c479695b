"""A grammar for a custom tool, a text that matches it, and how a model writes a call with it."""

from __future__ import annotations

PATCH_GRAMMAR = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""
PATCH = '*** Begin Patch\n*** Add File: a "b".py\n+print("\\n")\n+</tool_call>\n*** End Patch\n'
ARGUMENTS = '{"name": "NAME", "arguments": '


def written(name: str, text: str, head: str = f"<tool_call>\n{ARGUMENTS}") -> str:
    """What a model writes that is held to a tool's grammar."""
    return f"{head.replace('NAME', name)}<input>\n{text}"
