"""A model's files opened and understood, whichever format they have; nothing is computed yet."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from caudal.errors import ModelLoadError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.gguf import GGUFFile
from caudal.formats.model_folder import WEIGHTS, ModelFolder
from caudal.formats.renamed_tensors import RenamedTensors
from caudal.formats.safetensors import SafetensorsFile
from caudal.formats.tensor_file import TensorFile
from caudal.formats.tensor_names import BERT, BERT_PAIRS, DENSE
from caudal.formats.tokenizer import Tokenizer
from caudal.models import build_program
from caudal.models.bert import build_encoder
from caudal.models.encoder_config import EncoderConfig
from caudal.models.program import Program
from caudal.store import StoredModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """An open model.

    Attributes:
        weights: Its tensors.
        program: Its computation.
        tokenizer: Text to ids and back.
        chat_template: Conversations to ids.
        tokenizer_kind: The tokenizer's family, e.g. `gpt2 (smollm)`.
    """

    weights: TensorFile
    program: Program
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    tokenizer_kind: str

    @property
    def matrices(self) -> dict[str, int]:
        """How many matrices have each tensor type, most frequent first."""
        matrices = [each for each in self.weights.tensors.values() if len(each.shape) > 1]
        return dict(Counter(tensor.type.name for tensor in matrices).most_common())


@contextlib.contextmanager
def open_model(stored: StoredModel, *, chat_template: str | None = None) -> Iterator[ModelFiles]:
    """Open a model, and close its files at the end.

    Args:
        stored: The model.
        chat_template: A Jinja template to use instead of the model's.

    Raises:
        ModelLoadError: The files can't be used; names what is wrong.
    """
    folder = stored.folder
    with _open_gguf(stored) if folder is None else _open_folder(folder) as files:
        tokens, rows = files.tokenizer.vocab_size, files.program.vocab_size
        # More rows than tokens would let the model choose ids that stand for no text.
        if tokens != rows:
            raise ModelLoadError(
                str(stored.path),
                f"the tokenizer has {tokens} tokens, but token_embd.weight has {rows} rows; they "
                "must be equal",
            )
        if chat_template is not None:
            template = ChatTemplate.given(chat_template, files.tokenizer)
            files = replace(files, chat_template=template)
        yield files


@contextlib.contextmanager
def open_weights(folder: ModelFolder) -> Iterator[tuple[TensorFile, EncoderConfig]]:
    """Open the tensors of a Hugging Face folder, under llama.cpp's names.

    Raises:
        ModelLoadError: They can't be used; names what is wrong.
    """
    config = EncoderConfig.from_folder(folder)
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(SafetensorsFile.open(folder.path(WEIGHTS)))
        files = [(weights, BERT_PAIRS if config.pooling.scores_pairs else BERT)]
        if config.dense is not None:
            path = folder.path(f"{config.dense.path}/{WEIGHTS}")
            files.append((stack.enter_context(SafetensorsFile.open(path)), DENSE))
        yield RenamedTensors.of("bert", files), config


@contextlib.contextmanager
def _open_gguf(stored: StoredModel) -> Iterator[ModelFiles]:
    with GGUFFile.open(stored.path) as file:
        program = build_program(file)
        tokenizer = Tokenizer.from_gguf(file)
        family = file.get_str("tokenizer.ggml.model")
        yield ModelFiles(
            weights=file,
            program=program,
            tokenizer=tokenizer,
            chat_template=ChatTemplate.from_gguf(file, tokenizer),
            tokenizer_kind=f"{family} ({file.get_str('tokenizer.ggml.pre', 'default')})",
        )


@contextlib.contextmanager
def _open_folder(folder: ModelFolder) -> Iterator[ModelFiles]:
    with open_weights(folder) as (weights, config):
        program = build_encoder(weights, config)
        tokenizer = Tokenizer.from_folder(folder, lowercase=config.lowercase)
        yield ModelFiles(
            weights=weights,
            program=program,
            tokenizer=tokenizer,
            chat_template=ChatTemplate.default(tokenizer),
            tokenizer_kind="WordPiece",
        )
