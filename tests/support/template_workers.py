"""What runs chat templates in tests: started once, for all of them."""

from __future__ import annotations

from functools import cache

from caudal.formats.template_workers import TemplateWorkers


@cache
def shared_workers() -> TemplateWorkers:
    return TemplateWorkers()
