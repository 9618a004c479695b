"""Prompts that answers repeat, with small changes: what guesses by looking up are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

NAMES = (
    *("order", "invoice", "customer", "parcel", "ticket", "account", "shipment", "product"),
    *("supplier", "contract", "payment", "branch", "vehicle", "machine", "sensor", "reading"),
)
"""What texts are about, so that no two are the same."""


def code_prompt(number: int) -> str:
    """Has a module repeated with a small change, as editors have."""
    generator = Random(number)
    names = generator.sample(NAMES, 6)
    functions = [
        f"def load_{name}({name}_id, connection):\n"
        f'    """Read the {name} with this id, or fail."""\n'
        f'    row = connection.execute("SELECT * FROM {name}s WHERE id = ?", ({name}_id,))\n'
        f"    if row is None:\n"
        f'        raise KeyError("no {name} has the id " + str({name}_id))\n'
        f"    return {name.capitalize()}(row, limit={generator.randrange(10, 99)})\n"
        for name in names
    ]
    module = "\n\n".join(functions)
    return (
        f"Before:\n\n```python\n{module}```\n\n"
        f"After the change of the first function:\n\n```python\n"
        f"{functions[0].replace('connection', 'database')}\n\n{functions[1]}\n"
    )


def quotes_prompt(number: int) -> str:
    """Has an article's sentences quoted."""
    generator = Random(number)
    names = generator.sample(NAMES, 8)
    sentences = [
        f"In {1900 + generator.randrange(99)} the town kept a {name} in every house, and nobody "
        f"would have thought of leaving it without somebody to look after it."
        for name in names
    ]
    quotes = "\n".join(f'> "{sentence}"' for sentence in sentences[:2])
    return f"{' '.join(sentences)}\n\nWhat the article says, quoted in full:\n\n{quotes}\n"


def json_prompt(number: int) -> str:
    """Has records written in a form that examples show."""
    generator = Random(number)
    records = [
        f'  {{"kind": "{name}", "identifier": {generator.randrange(1000, 9999)}, '
        f'"is_available": true, "number_of_copies": {generator.randrange(9)}}},\n'
        for name in generator.sample(NAMES, 8)
    ]
    return f"[\n{''.join(records)}]\n\nThe same again:\n\n[\n{''.join(records[:2])}"


REPEATING: Mapping[str, Callable[[int], str]] = {
    "code edit": code_prompt,
    "quotes": quotes_prompt,
    "JSON": json_prompt,
}
"""By name. The same number makes the same prompt, of 320 to 680 tokens."""
