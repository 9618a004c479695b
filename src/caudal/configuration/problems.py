"""What is wrong with settings: all of it is found before any of it is said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

from caudal.errors import ConfigurationError, ConfigurationProblemsError, all_of


class Problems:
    """Collects errors: `with problems:` goes on behind what raises one."""

    def __init__(self) -> None:
        self._errors: list[ConfigurationError] = []

    def __enter__(self) -> None:
        """See the class."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, ConfigurationError):
            return False
        self.add(error)
        return True

    @contextlib.contextmanager
    def of(self, error_of: Callable[[str], ConfigurationError]) -> Iterator[None]:
        """The same, for `ValueError`.

        Args:
            error_of: Makes an error of what is wrong, which says where.
        """
        with self:
            try:
                yield
            except ValueError as error:
                raise error_of(str(error)) from error

    def add(self, error: ConfigurationError) -> None:
        """Note what is wrong."""
        for each in error.errors if isinstance(error, ConfigurationProblemsError) else [error]:
            if str(each) not in map(str, self._errors):  # models share what is said of all
                self._errors.append(each)

    def raise_all(self) -> None:
        """Raise what was noted, if anything was."""
        if self._errors:
            raise all_of(self._errors)
