"""Lists of items, page by page, as OpenAI's APIs have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from fastapi import Query, Request
from pydantic import BaseModel

from caudal.errors import ParameterError

MAX_LISTED = 100


class Page(BaseModel):
    """Which items a list is to have.

    Attributes:
        after: The id of the item that it begins behind.
        limit: Most items.
        order: `asc`: oldest first.
        most: Most items that there may be in a page.
    """

    most: ClassVar[int] = MAX_LISTED

    after: str | None = None
    limit: int = 20
    order: Literal["asc", "desc"] = "desc"

    def of(self, items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The page of these items, oldest first, as the API lists them.

        Raises:
            ParameterError: There can be no such page.
        """
        if not 1 <= self.limit <= self.most:
            raise ParameterError(
                "limit", f"limit must be between 1 and {self.most}, but is {self.limit}."
            )
        listed = [*items]
        if self.order == "desc":
            listed.reverse()
        if self.after is not None:
            ids = [item["id"] for item in listed]
            if self.after not in ids:
                raise ParameterError("after", f"after: there is no item {self.after!r:.80}.")
            listed = listed[ids.index(self.after) + 1 :]
        page = listed[: self.limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(listed) > self.limit,
        }


PageQuery = Annotated[Page, Query()]
"""What a route's parameter is annotated with whose argument is the page asked for."""


def check_query(request: Request, allowed: Collection[str]) -> None:
    """Refuse what an address asks for besides; raises `ParameterError`."""
    for name in request.query_params:
        if name not in allowed:
            field = name.removesuffix("[]")
            raise ParameterError(field, f"{field} is not supported by this server.")
