from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from caudal.server.openai.conversation_store import ConversationStore
from caudal.server.openai.unknown import UnknownConversationError
from support.running_server import RunningServer

Converse = Callable[..., RunningServer]

USER: Any = {"type": "message", "role": "user", "content": "Hi"}


def texts(client: openai.OpenAI, identity: str) -> list[str]:
    items = client.conversations.items.list(identity, order="asc", limit=2)
    return [item.content[0].text for item in items if item.type == "message"]  # type: ignore[union-attr]


def test_responses_belong_to_a_conversation(converse: Converse):
    client = converse("Yes.").openai()
    made = client.conversations.create(items=[USER], metadata={"a": "b"})
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    first = client.responses.create(model="fake", input="And?", conversation=made.id)
    assert first.conversation is not None
    assert first.conversation.id == made.id
    assert texts(client, made.id) == ["Hi", "And?", "Yes."]
    *_, last = client.responses.create(
        model="fake", input="So?", conversation={"id": made.id}, store=False, stream=True
    )
    assert last.type == "response.completed"
    assert texts(client, made.id) == ["Hi", "And?", "Yes.", "So?", "Yes."]
    by_hand: Any = [
        {"role": "assistant" if text == "Yes." else "user", "content": text}
        for text in ["Hi", "And?", "Yes.", "So?"]
    ]
    counted = client.responses.input_tokens.count(model="fake", input=by_hand)
    assert last.response.usage is not None
    assert last.response.usage.input_tokens == counted.input_tokens
    kept = client.responses.input_items.list(first.id, order="asc")
    assert len(list(kept)) == 2


def test_conversations_are_kept_changed_and_forgotten(converse: Converse):
    client = converse("Yes.").openai()
    made = client.conversations.create()
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"}
    gone = client.conversations.delete(made.id)
    assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
    for use in (
        lambda: client.conversations.retrieve(made.id),
        lambda: client.conversations.update(made.id, metadata={}),
        lambda: client.conversations.delete(made.id),
        lambda: client.conversations.items.list(made.id),
        lambda: client.conversations.items.create(made.id, items=[USER]),
        lambda: client.responses.create(model="fake", input="Hi", conversation=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            use()


def test_items_come_and_go(converse: Converse):
    client = converse("Yes.").openai()
    made = client.conversations.create(items=[USER])
    added = client.conversations.items.create(made.id, items=[USER | {"content": "More"}])
    assert (added.object, added.has_more) == ("list", False)
    [item] = added.data
    assert item.id == added.first_id == added.last_id
    assert client.conversations.items.retrieve(item.id, conversation_id=made.id) == item
    assert client.conversations.items.delete(item.id, conversation_id=made.id) == made
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(item.id, conversation_id=made.id)
    assert texts(client, made.id) == ["Hi"]
    newest_first = client.conversations.items.list(made.id)
    assert newest_first.has_more is False
    with pytest.raises(openai.BadRequestError) as caught:
        client.conversations.items.list(made.id, include=["file_search_call.results"])
    assert caught.value.param == "include"
    with pytest.raises(openai.BadRequestError):
        client.conversations.items.create(made.id, items=[USER] * 21)


def test_two_ways_to_go_on_exclude_each_other(converse: Converse):
    client = converse("Yes.").openai()
    made = client.conversations.create()
    first = client.responses.create(model="fake", input="Hi")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="fake", input="Hi", conversation=made.id, previous_response_id=first.id
        )
    assert caught.value.param == "conversation"


def test_conversations_are_bounded():
    store = ConversationStore(max_conversations=2, max_bytes=2000)
    first, second = store.create({}, []), store.create({}, [])
    store.get(first.id)
    third = store.create({}, [])
    with pytest.raises(UnknownConversationError):
        store.get(second.id)
    store.extend(first.id, [{"id": "x", "text": "x" * 1000}])
    assert len(store) == 2
    store.extend(third.id, [{"id": "y", "text": "y" * 1000}])
    assert len(store) == 1  # the one that was used last
    assert store.get(third.id).items
    store.delete_item(third.id, "y")
    store.create({}, [{"id": "z", "text": "z" * 1000}])
    assert len(store) == 2
    store.extend("conv_gone", [{"id": "x"}])
    store.describe(third.id, {"k": "v" * 1500})
    assert len(store) == 1
