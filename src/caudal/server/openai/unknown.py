"""What requests of OpenAI's API refer to and the server doesn't keep, or not any more."""

from __future__ import annotations

from caudal.errors import CaudalError


class UnknownResponseError(CaudalError):
    """There is no such response: there never was, or it was deleted, or had to make room."""

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"There is no response {identity!r:.80}. The server keeps the latest ones only, in "
            "memory, and none that was made with store false."
        )


class UnknownItemError(CaudalError):
    """A request refers to an item that is in no stored response or conversation."""

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"Item with id {identity!r:.80} not found. Items are kept with their response, and "
            "those of responses made with store false are not."
        )


class UnknownConversationError(CaudalError):
    """There is no such conversation: there never was, or it was deleted, or had to make room."""

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"Conversation with id {identity!r:.80} not found. The server keeps the latest ones "
            "only, in memory."
        )
