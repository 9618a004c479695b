"""The tokenizer of a folder, of whichever kind it is."""

from __future__ import annotations

from caudal.formats import embedding_keys
from caudal.formats.huggingface import unigram
from caudal.formats.huggingface.tokenizer import read_tokenizer, tokenizer_type
from caudal.formats.model_file import ModelFile
from caudal.formats.model_folder import ModelFolder
from caudal.formats.tokenizer import Tokenizer

_EMBEDDING = "token_embd.weight"


def folder_tokenizer(folder: ModelFolder, file: ModelFile, *, is_encoder: bool) -> Tokenizer:
    """Build the tokenizer of a folder.

    Args:
        folder: The files.
        file: What is read from them.
        is_encoder: Whether the model makes embeddings or scores: these have tokenizers of more
            kinds than those that generate.

    Raises:
        ModelLoadError: The tokenizer is of a kind that isn't supported, or damaged.
    """
    kind = tokenizer_type(folder)
    if is_encoder and kind == unigram.TYPE:
        return unigram.read_unigram(folder, file.tensor(_EMBEDDING).shape[0])
    if is_encoder and kind != "BPE":
        lowercase = file.get_bool(embedding_keys.LOWERCASE, False)
        return Tokenizer.from_folder(folder, lowercase=lowercase)
    return read_tokenizer(folder, file.tensor(_EMBEDDING).shape[0])
