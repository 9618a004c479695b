"""An answer at the terminal, as it comes."""

from __future__ import annotations

from types import TracebackType

import typer
from rich.console import Console


class AnswerDisplay:
    """Prints an answer on standard output and what the model thinks on standard error, dimmed.

    So whatever reads the output, a pipe or a file, gets the answer alone. A context manager: the
    answer's last line ends with it.

    Args:
        with_thinking: Whether thinking is shown.
    """

    def __init__(self, *, with_thinking: bool = True) -> None:
        self._thoughts = Console(stderr=True) if with_thinking else None
        self._is_thinking = False

    def show(self, text: str) -> None:
        """Print more of the answer."""
        self._end_thinking()
        typer.echo(text, nl=False)

    def show_thinking(self, text: str) -> None:
        """Print more of what the model thinks."""
        if self._thoughts is not None:
            self._is_thinking = True
            self._thoughts.out(text, style="dim", end="", highlight=False)

    def __enter__(self) -> AnswerDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_thinking:  # there is no answer
            self._end_thinking()
        else:
            typer.echo()

    def _end_thinking(self) -> None:
        if self._is_thinking and self._thoughts is not None:
            self._is_thinking = False
            self._thoughts.out("\n")
