r"""How byte-level BPE families cut text into words before merging, by `tokenizer.ggml.pre`.

GGUF files carry only the pre-tokenizer's name, so the patterns have to be known here. They are
those of the models' own tokenizers. Each pattern in turn isolates its matches in the pieces
the previous one left, as the tokenizers library's `Split(…, "isolated")` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _llama3_like(digits: str, *, contractions: bool = True) -> str:
    head = _CONTRACTION + "|" if contractions else ""
    return (
        head
        + rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
        + _WHITE_SPACE
    )


def _cased_words(digits: str, contraction: str) -> str:
    """Words split where upper case follows lower case, as GPT-4o's and Tekken's are."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}[{upper}]*[{lower}]+{contraction}|{start}[{upper}]+[{lower}]*{contraction}|"
        rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|" + _WHITE_SPACE
    )


def _character_class(ranges: str) -> str:
    """A class from code points and ranges in hexadecimal, e.g. `41-5A B5`."""
    parts = (part.split("-") for part in ranges.split())
    return "[" + "".join("-".join(rf"\x{{{end}}}" for end in part) for part in parts) + "]"


_DEEPSEEK_LETTERS = _character_class(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 "
    "388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA "
    "1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 "
    "1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D "
    "212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 "
    "A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A "
    "FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_PUNCTUATION = _character_class("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_CJK = _character_class("4E00-9FA5 800-4E00 AC00-D7FF")
_DEEPSEEK3_CJK = _character_class("4E00-9FA5 3040-309F 30A0-30FF")
_DEEPSEEK3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
    r" ?[\p{P}\p{S}]+[\r\n]*|" + _WHITE_SPACE
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One family's rules.

    Attributes:
        patterns: Oniguruma patterns, applied in turn.
        ignore_merges: A word that is a token as a whole is taken without merging.
        add_bos: Whether BOS begins a prompt where the file doesn't say.
        nfc: Text is brought into Unicode normal form C first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_PLAIN_GPT2 = PreTokenizer((GPT2_PATTERN,))
_DIGITWISE_GPT2 = PreTokenizer((r"\p{N}", GPT2_PATTERN))
_LLAMA3 = PreTokenizer((_llama3_like(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_LLAMA3_PATTERN_ONLY = PreTokenizer(_LLAMA3.patterns)
_QWEN2 = PreTokenizer((_llama3_like(r"\p{N}"),), nfc=True)
_QWEN2_PATTERN_ONLY = PreTokenizer(_QWEN2.patterns)
_QWEN35 = PreTokenizer(
    (
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
        rf"{_WHITE_SPACE}",
    ),
    nfc=True,
)
_GPT4O = PreTokenizer((_cased_words(r"\p{N}{1,3}", _CONTRACTION + "?"),))
_TEKKEN = PreTokenizer((_cased_words(r"\p{N}", ""),), ignore_merges=True, add_bos=True)
_DEEPSEEK_LLM = PreTokenizer(
    (
        r"[\r\n]",
        rf"\s?{_DEEPSEEK_LETTERS}+",
        rf"\s?{_DEEPSEEK_PUNCTUATION}+",
        # The model's own pattern is \s+$. The look-behind and the possessive repetition match the
        # same, but keep a megabyte of spaces before a letter from being scanned once per space.
        r"(?<!\s)\s++$",
        rf"{_DEEPSEEK_CJK}+",
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", rf"{_DEEPSEEK_CJK}+", r"\p{N}")
)
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", rf"{_DEEPSEEK3_CJK}+", _DEEPSEEK3_WORDS))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]"))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]"))
_BLOOM = PreTokenizer((r" ?[^(\s|.,!?…。，、।۔،)]+",))
_BAILING = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+",
    )
)
_SEED_CODER = PreTokenizer(
    (
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|"
        rf"{_WHITE_SPACE}",
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    # GPT-2's pattern.
    "gpt-2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "roberta-bpe": _PLAIN_GPT2,
    "gigachat": _PLAIN_GPT2,
    "a.x-4.0": _PLAIN_GPT2,
    "mellum": _PLAIN_GPT2,
    "exaone4": _PLAIN_GPT2,
    "jais": _PLAIN_GPT2,
    "trillion": _PLAIN_GPT2,
    "granite-docling": _PLAIN_GPT2,
    "mpt": replace(_PLAIN_GPT2, nfc=True),
    "modern-bert": replace(_PLAIN_GPT2, nfc=True),
    "olmo": replace(_PLAIN_GPT2, nfc=True),
    # Each digit alone, then GPT-2's pattern.
    "smollm": _DIGITWISE_GPT2,
    "starcoder": _DIGITWISE_GPT2,
    "refact": _DIGITWISE_GPT2,
    "codeshell": _DIGITWISE_GPT2,
    "exaone": _DIGITWISE_GPT2,
    "minerva-7b": _DIGITWISE_GPT2,
    "mellum2": _DIGITWISE_GPT2,
    "command-r": replace(_DIGITWISE_GPT2, nfc=True),
    # Llama 3.
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "pixtral": _LLAMA3,
    "midm-2.0": _LLAMA3,
    "lfm2": _LLAMA3,
    "dbrx": _LLAMA3_PATTERN_ONLY,
    "smaug-bpe": _LLAMA3_PATTERN_ONLY,
    "glm4": _LLAMA3_PATTERN_ONLY,
    "chatglm-bpe": _LLAMA3_PATTERN_ONLY,
    # Qwen 2 to 3.
    "qwen2": _QWEN2,
    "qwen35": _QWEN35,
    "megrez": _QWEN2_PATTERN_ONLY,
    "deepseek-r1-qwen": _QWEN2_PATTERN_ONLY,
    "stablelm2": _QWEN2_PATTERN_ONLY,
    "hunyuan": _QWEN2_PATTERN_ONLY,
    "solar-open": _QWEN2_PATTERN_ONLY,
    "grok-2": _QWEN2_PATTERN_ONLY,
    "kormo": _QWEN2_PATTERN_ONLY,
    # GPT-4o and Mistral's Tekken.
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "kanana2": _GPT4O,
    "minimax-m2": _GPT4O,
    "tekken": _TEKKEN,
    # DeepSeek.
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_V3,
    "hunyuan-dense": _DEEPSEEK_V3,
    "joyai-llm": _DEEPSEEK_V3,
    # Others.
    "falcon": _FALCON,
    "bloom": _BLOOM,
    "poro-chat": _BLOOM,
    "gpt3-finnish": _BLOOM,
    "viking": PreTokenizer((*_BLOOM.patterns, r"\p{N}")),
    "bailingmoe": _BAILING,
    "bailingmoe2": _BAILING,
    "seed-coder": _SEED_CODER,
}

_KNOWN = frozenset(pattern for rules in PRE_TOKENIZERS.values() for pattern in rules.patterns)
# As published, and as it is here: the same matches.
_SPELT_OTHERWISE = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2_PATTERN,
    r"\s+$": r"(?<!\s)\s++$",
    "[一-龥ࠀ-一가-퟿]+": f"{_DEEPSEEK_CJK}+",
    "[一-龥぀-ゟ゠-ヿ]+": f"{_DEEPSEEK3_CJK}+",
}


def known_pattern(written: str) -> str | None:
    """The pattern that a `tokenizer.json` means, where it is one of those above; else None."""
    if written in _KNOWN:
        return written
    return _SPELT_OTHERWISE.get(written)


def name_of(rules: PreTokenizer, preferred: str = "") -> str | None:
    """The name that GGUF has for rules; None where it has none.

    Several names may mean the same; the first in the table is taken, or one that begins like
    `preferred`. Whether BOS begins a prompt doesn't count: files say that themselves.
    """
    wanted = replace(rules, add_bos=False)
    names = [
        name for name, each in PRE_TOKENIZERS.items() if replace(each, add_bos=False) == wanted
    ]
    return next((name for name in names if preferred and name.startswith(preferred)), None) or next(
        iter(names), None
    )
