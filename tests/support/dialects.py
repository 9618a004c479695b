"""Small models that speak like the well-known ones: their control tokens, and a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from caudal.chat.harmony import HARMONY
from caudal.chat.preparer import ChatPreparer
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.tokenizer import Tokenizer
from support.template_workers import shared_workers
from support.vocabularies import bpe_metadata, make_tokenizer

_TURNS = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\n' }}{% endfor %}"
_TOOLS = "{% if tools %}{{ tools | tojson }}\n{% endif %}"


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model's vocabulary and template.

    Attributes:
        control: Control tokens; the first ends an answer.
        template: Its template's source.
        user_defined: Tokens that are text, but whole.
    """

    control: Sequence[str]
    template: str
    user_defined: Sequence[str] = ()

    def tokenizer(self, folder: Path) -> Tokenizer:
        folder.mkdir(exist_ok=True)
        metadata = bpe_metadata(control=self.control, user_defined=self.user_defined)
        return make_tokenizer(folder, metadata)

    def load(self, folder: Path, **parsers: str) -> tuple[ChatPreparer, Tokenizer]:
        tokenizer = self.tokenizer(folder)
        if self is MODELS["gemma"]:  # its template doesn't show it
            parsers.setdefault("tool_parser", "gemma")
        template = ChatTemplate(self.template, tokenizer, workers=shared_workers())
        return ChatPreparer(template, tokenizer, **parsers), tokenizer


def _marked(*markers: str) -> str:
    """A template that shows these markers without writing them."""
    return _TOOLS + _TURNS + "".join(f"{{% if '{mark}' == 0 %}}{{% endif %}}" for mark in markers)


# fmt: off
MODELS = {
    "hermes": SmallModel(["<|im_end|>"], _marked("<tool_call>"), ["<tool_call>", "</tool_call>"]),
    "hermes with control tokens": SmallModel(
        ["<|im_end|>", "<tool_call>", "</tool_call>"], _marked("<tool_call>")
    ),
    "qwen3": SmallModel(
        ["<|im_end|>"],
        _marked("<tool_call>", "</think>") + "{% if add_generation_prompt %}assistant: "
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
        "{% endif %}{% endif %}",
        ["<tool_call>", "</tool_call>", "<think>", "</think>"],
    ),
    "deepseek_r1": SmallModel(
        [
            "<｜end▁of▁sentence｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁sep｜>",
        ],
        _marked("<｜tool▁calls▁begin｜>", "</think>")
        + "{% if add_generation_prompt %}assistant: <think>\n{% endif %}",
        ["<think>", "</think>"],
    ),
    "qwen3_coder": SmallModel(["<|im_end|>"], _marked("<tool_call>", "<function=", "<parameter=")),
    "llama3": SmallModel(
        ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
        _marked("<|start_header_id|>"),
    ),
    "mistral": SmallModel(["</s>", "[TOOL_CALLS]"], _marked("[TOOL_CALLS]")),
    "magistral": SmallModel(
        ["</s>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"],
        _marked("[TOOL_CALLS]", "[ARGS]", "[/THINK]"),
    ),
    "granite": SmallModel(["<|end_of_text|>", "<|tool_call|>"], _marked("<|tool_call|>")),
    "functiongemma": SmallModel(
        ["<end_of_turn>", "<start_function_call>", "<end_function_call>", "<escape>"],
        _marked("<start_function_call>"),
    ),
    "gpt-oss": SmallModel(
        [
            "<|return|>",
            "<|call|>",
            *(mark for mark in HARMONY.markers if mark not in ("<|return|>", "<|call|>")),
        ],
        _marked() + "{% if '<|channel|><|message|>' == 0 %}{{ reasoning_effort }}{% endif %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ),
    "muse": SmallModel(
        ["<|eot|>", "<|start|>", "<|message|>", "<|eom|>"],
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ reasoning_strength }}"
        "{% for m in messages %}{% set to = '<|start|>assistant to=' %}"
        "{% if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>"
        "{% else %}{% if m.reasoning_content %}"
        "{{ to + 'self<|message|>' + m.reasoning_content + '<|eom|>' }}{% endif %}"
        "{% for call in m.tool_calls %}"
        "{{ to + call.function.name + '<|message|><atem:function_calls>\n' }}"
        "{{ '<atem:invoke name=\"' + call.function.name + '\">\n' }}"
        "{% for k, v in call.function.arguments.items() %}"
        "{{ '<atem:parameter name=\"' + k + '\">' ~ (v if v is string else v | tojson) "
        "+ '</atem:parameter>\n' }}{% endfor %}"
        "{{ '</atem:invoke>\n</atem:function_calls>' }}"
        "{{ '<|eot|>' if loop.last else '<|eom|>' }}"
        "{% else %}{{ to + 'user<|message|>' + m.content }}"
        "{{ '<|eom|>' if m.get('end_turn') is false else '<|eot|>' }}{% endfor %}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ),
    "pythonic": SmallModel(
        ["<|eot|>", "<|python_start|>", "<|python_end|>"], _marked("<|python_start|>")
    ),
    "lfm2": SmallModel(
        ["<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"], _marked("<|tool_call_start|>")
    ),
    "lfm2 by its tokens": SmallModel(
        ["<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"], _TOOLS + _TURNS
    ),
    "lfm2 by its list of tools": SmallModel(
        ["<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>"], _marked("<|tool_list_start|>")
    ),
    "glm": SmallModel(
        [
            "<|user|>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
            "</arg_value>",
        ],
        _marked("<tool_call>", "<arg_key>", "</think>"),
        ["<think>", "</think>"],
    ),
    "kimi": SmallModel(
        [
            "<|im_end|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
            "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        ],
        _marked("<|tool_calls_section_begin|>"),
    ),
    "minimax": SmallModel(["[e~["], _marked("<minimax:tool_call>")),
    "deepseek_v32": SmallModel(["<｜end▁of▁sentence｜>", "｜DSML｜"], _marked("｜DSML｜")),
    "seed": SmallModel(
        ["<seed:eos>", "<seed:tool_call>", "</seed:tool_call>"],
        _marked("<seed:tool_call>", "<function=", "<parameter="),
    ),
    "command-r": SmallModel(
        ["<|END_OF_TURN_TOKEN|>", "<|START_ACTION|>", "<|END_ACTION|>"],
        _marked("<|START_ACTION|>"),
    ),
    "nemotron": SmallModel(["<SPECIAL_12>"], _marked("<TOOLCALL>")),
    "apriel": SmallModel(["<|end|>"], _marked("<tool_calls>")),
    "functionary": SmallModel(
        ["<|eot_id|>", "<|start_header_id|>"], _marked("<|start_header_id|>", "<function=")
    ),
    "unknown": SmallModel(["<|im_end|>"], _TOOLS + _TURNS),
    "gemma4": SmallModel(
        ["<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"],
        _marked("<|tool_call>", "<channel|>") + "{% if add_generation_prompt and "
        "enable_thinking is false %}<|channel>thought\n<channel|>{% endif %}",
    ),
    "qwen3.5": SmallModel(
        ["<|im_end|>"],
        _marked("<tool_call>", "<function=", "<parameter=", "</think>")
        + "{% if add_generation_prompt %}assistant: <think>\n"
        "{% if enable_thinking is false %}\n</think>\n\n{% endif %}{% endif %}",
        ["<tool_call>", "</tool_call>", "<think>", "</think>"],
    ),
    "glm47": SmallModel(
        ["<|endoftext|>", "<|user|>", "<|observation|>"],
        _marked("<tool_call>", "</arg_key><arg_value>", "</think>")
        + "{% if add_generation_prompt %}"
        "{{ '</think>' if enable_thinking is false else '<think>' }}{% endif %}",
        [
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
            "<arg_value>", "</arg_value>",
        ],
    ),
    "deepseek_v4": SmallModel(
        ["<｜end▁of▁sentence｜>", "｜DSML｜"],
        _marked("｜DSML｜", "</think>") + "{% set block = 'tool_calls>' %}"
        "{% if add_generation_prompt %}{{ '<think>' if thinking else '</think>' }}{% endif %}",
        ["<think>", "</think>"],
    ),
    "phi4_mini": SmallModel(
        ["<|end|>", "<|tool_call|>", "<|/tool_call|>"], _marked("<|tool_call|>", "<|/tool_call|>")
    ),
    "gemma": SmallModel(["<end_of_turn>"], _TOOLS + _TURNS),
    "plain": SmallModel(["<|im_end|>"], _TURNS),
}
# fmt: on
