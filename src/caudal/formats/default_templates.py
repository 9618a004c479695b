"""Chat templates for files that hold none, chosen by the control tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DefaultTemplate:
    """A template for models that know certain control tokens.

    Attributes:
        name: The format's name, for the start-up message.
        tokens: Control tokens that all have to be in the vocabulary.
        source: The Jinja template.
    """

    name: str
    tokens: tuple[str, ...]
    source: str


# A system message joins the message after it where the format has no role for it.
_MERGE_SYSTEM = (
    "{%- if messages[0].role == 'system' and messages | length > 1 -%}"
    "{%- set system = messages[0].content ~ '\n\n' -%}{%- set messages = messages[1:] -%}"
    "{%- else -%}{%- set system = '' -%}{%- endif -%}"
)

DEFAULT_TEMPLATES = (
    DefaultTemplate(
        "ChatML",
        ("<|im_start|>", "<|im_end|>"),
        "{%- for message in messages -%}"
        "{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}",
    ),
    DefaultTemplate(
        "Llama 3",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "{{- bos_token -}}{%- for message in messages -%}"
        "{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}"
        "{{- message.content | trim ~ '<|eot_id|>' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}",
    ),
    DefaultTemplate(
        "Gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        _MERGE_SYSTEM + "{{- bos_token -}}{%- for message in messages -%}"
        "{{ '<start_of_turn>' ~ ('model' if message.role == 'assistant' else message.role) }}"
        "{{- '\n' ~ (system if loop.first else '') ~ message.content | trim }}"
        "{{- '<end_of_turn>\n' }}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}",
    ),
    DefaultTemplate(
        "Phi 3",
        ("<|user|>", "<|assistant|>", "<|end|>"),
        "{%- for message in messages -%}"
        "{{ '<|' ~ message.role ~ '|>\n' ~ message.content ~ '<|end|>\n' }}"
        "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}",
    ),
    DefaultTemplate(
        "Mistral",
        ("[INST]", "[/INST]"),
        _MERGE_SYSTEM + "{{- bos_token -}}{%- for message in messages -%}"
        "{%- if message.role == 'assistant' -%}{{ message.content ~ eos_token }}"
        "{%- else -%}"
        "{{ '[INST]' ~ (system if loop.first else '') ~ message.content ~ '[/INST]' }}"
        "{%- endif -%}{%- endfor -%}",
    ),
)

PLAIN_TEMPLATE = DefaultTemplate(
    "plain",
    (),
    "{{- bos_token -}}{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content ~ '\n\n' }}"
    "{%- else -%}{{ message.role | capitalize ~ ': ' ~ message.content ~ '\n' }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt -%}Assistant:{%- endif -%}",
)
"""For a vocabulary without known control tokens: `User: …` and `Assistant: …`, a line each."""


def choose_default_template(control_tokens: Container[str]) -> DefaultTemplate:
    """The first of `DEFAULT_TEMPLATES` whose tokens the model has, else `PLAIN_TEMPLATE`."""
    for template in DEFAULT_TEMPLATES:
        if all(token in control_tokens for token in template.tokens):
            return template
    return PLAIN_TEMPLATE
