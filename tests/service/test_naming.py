"""Each API's names of fields: one translation, of whole names and of places in them."""

import pytest

from caudal.errors import ContextOverflowError, ParameterError, TemplateError
from caudal.service.naming import OUR_NAMES, FieldNames

NAMES = FieldNames(
    {"max_tokens": "max_output_tokens", "input": "prompts", "messages": "input"},
    lambda index, part: f"tools[{index + 5}].function.{part}",
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("max_tokens", "max_output_tokens"),
        ("input[3]", "prompts[3]"),
        ("messages[0].content", "input[0].content"),
        ("tools[1].parameters", "tools[6].function.parameters"),
        ("tools[1].name", "tools[1].name"),
        ("temperature", "temperature"),
        ("max_tokens_per_doc", "max_tokens_per_doc"),
        ("", ""),
    ],
)
def test_fields_and_places_in_them(ours: str, theirs: str):
    assert NAMES.of(ours) == theirs
    assert OUR_NAMES.of(ours) == ours


def test_a_message_begins_with_the_name_that_the_caller_knows():
    error = ParameterError("max_tokens", "max_tokens must be at least 1, and max_tokens is 0.")
    expected = "max_output_tokens must be at least 1, and max_tokens is 0."
    assert NAMES.message(error) == expected
    assert NAMES.message(TemplateError("No system messages!")) == "No system messages!"
    overflow = ContextOverflowError("messages", 10, 12)
    assert NAMES.message(overflow) == str(overflow)
