"""Go's text/template, as far as the templates of Ollama's models use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from caudal.formats.go_template.evaluator import Run
from caudal.formats.go_template.functions import NAMES
from caudal.formats.go_template.nodes import Body
from caudal.formats.go_template.parser import MAIN, parse
from caudal.formats.go_template.values import go_value


@dataclass(frozen=True, slots=True)
class GoTemplate:
    """A template.

    Attributes:
        source: As it is written.
        trees: The syntax trees of the template, which is `MAIN`, and of those that it defines.
    """

    source: str
    trees: Mapping[str, Body]

    @classmethod
    def parse(cls, source: str) -> Self:
        """Parse a template.

        Raises:
            GoTemplateError: It is wrong; a `TemplateError` that names line and column.
        """
        return cls(source, parse(source, NAMES))

    def render(self, values: Mapping[str, Any]) -> str:
        """What it writes.

        Args:
            values: What `.` is: values that are like JSON, or Go's.

        Raises:
            GoTemplateError: It failed, or takes too much: names line and column.
        """
        return Run(self.source, self.trees).render(MAIN, go_value(values))
