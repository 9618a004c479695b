"""Which of a repository's files make up the model that was asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caudal.errors import ModelNotFoundError
from caudal.formats.model_folder import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    WEIGHTS_INDEX,
    is_part_of_model,
)
from caudal.formats.split_names import SplitName

DEFAULT_QUANTISATIONS = ("Q4_K_M", "Q8_0")
"""Preferred where nobody says, as llama.cpp does (common/download.cpp); then the first file."""
_NOT_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""What names of GGUF files have in them that go with a model, as llama.cpp tells them apart."""
_MOST_SHOWN = 12


def choose_files(names: Sequence[str], selection: str | None, what: str) -> Sequence[str]:
    """The files to fetch, in order: GGUF files, all of a split one, or a folder's.

    Args:
        names: The paths of the repository's files.
        selection: One of its GGUF files, or a quantisation such as `Q8_0`, case ignored; None or
            `latest`: the usual one, or the folder where it has no GGUF file.
        what: The repository, for messages.

    Raises:
        ModelNotFoundError: It has nothing of the kind; says what it has.
    """
    gguf = sorted(name for name in names if _is_gguf_model(name))
    if selection is None or selection.lower() == "latest":
        if not gguf:
            return _folder(names, what)
        wanted = [_quantised(gguf, each) for each in DEFAULT_QUANTISATIONS]
        first = next((found[0] for found in wanted if found), gguf[0])
        return _whole(names, first, what)
    if selection.lower().endswith(".gguf"):
        matching = [
            name
            for name in names
            if selection.lower() in (name.lower(), name.lower().rpartition("/")[2])
        ]
    else:
        matching = _quantised(gguf, selection)
    if not matching:
        shown = ", ".join(gguf[:_MOST_SHOWN]) + (", …" if len(gguf) > _MOST_SHOWN else "")
        raise ModelNotFoundError(
            f"{what} has no {selection}; it has "
            + (shown or f"no GGUF files at all; for its safetensors ask for {what}")
        )
    return _whole(names, matching[0], what)


def _is_gguf_model(name: str) -> bool:
    file = name.lower().rpartition("/")[2]
    return file.endswith(".gguf") and not any(mark in file for mark in _NOT_MODELS)


def _quantised(names: Sequence[str], quantisation: str) -> list[str]:
    """Files whose paths have the quantisation, whole, in them."""
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(quantisation)}[./-]", re.IGNORECASE)
    return [name for name in names if pattern.search(name)]


def _whole(names: Sequence[str], name: str, what: str) -> Sequence[str]:
    """A file, and all others of it where it is split."""
    directory, slash, file = name.rpartition("/")
    split = SplitName.parse(file)
    if split is None or not split.count:
        return (name,)
    files = [f"{directory}{slash}{each}" for each in split.names]
    missing = sorted(set(files) - set(names))
    if missing:
        raise ModelNotFoundError(f"{what} lacks {missing[0]}, a part of {name}")
    return files


def _folder(names: Sequence[str], what: str) -> Sequence[str]:
    files = sorted(name for name in names if is_part_of_model(name))
    weights = next((name for name in (WEIGHTS, WEIGHTS_INDEX) if name in files), None)
    lacking = [name for name in (CONFIG, TOKENIZER) if name not in files]
    if weights is None or lacking:
        missing = ", ".join(lacking + ([] if weights else [WEIGHTS]))
        raise ModelNotFoundError(f"{what} has no GGUF file, and no folder to run: no {missing}")
    return [weights, *(name for name in files if name != weights)]
