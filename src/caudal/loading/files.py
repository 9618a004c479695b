"""A model's files opened and understood, whichever format they have; nothing is computed yet."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from caudal.errors import ModelLoadError
from caudal.formats.chat_template import ChatTemplate
from caudal.formats.gguf import GGUFFile
from caudal.formats.huggingface.any_tokenizer import folder_tokenizer
from caudal.formats.huggingface.model import FolderModel, open_folder
from caudal.formats.lora.base import AdapterBase
from caudal.formats.model_file import ModelFile
from caudal.formats.old_latents import with_latents
from caudal.formats.tokenizer import Tokenizer
from caudal.loading.recommended_sampling import recommended_sampling
from caudal.models import ENCODERS, build_program
from caudal.models.program import Program
from caudal.sampling_params import NO_RECOMMENDATION, RecommendedSampling
from caudal.store import StoredModel

_EMBEDDING = "token_embd.weight"
_OF_TOKENS_AHEAD = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """An open model.

    Attributes:
        weights: Its tensors.
        program: Its computation.
        tokenizer: Text to ids and back.
        chat_template: Conversations to ids.
        left_out: Modules that aren't loaded, because they aren't for text.
        sampling: What the model's maker recommends.
        adapter_base: What adapters for it are checked against.
    """

    weights: ModelFile
    program: Program
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    adapter_base: AdapterBase
    left_out: tuple[str, ...] = ()
    sampling: RecommendedSampling = NO_RECOMMENDATION

    @property
    def matrices(self) -> dict[str, int]:
        """How many matrices have each tensor type, most frequent first."""
        matrices = [each for each in self.weights.tensors.values() if len(each.shape) > 1]
        return dict(Counter(tensor.type.name for tensor in matrices).most_common())


@contextlib.contextmanager
def open_model(
    stored: StoredModel,
    *,
    chat_template: str | None = None,
    served_length: int | None = None,
    with_ahead: bool = False,
) -> Iterator[ModelFiles]:
    """Open a model, and close its files at the end.

    Args:
        stored: The model.
        chat_template: A template to use instead of the model's, and of its package's.
        served_length: Most tokens of a sequence that will be served; None: the model's own length.
        with_ahead: Whether layers that predict tokens further ahead are wanted, too.

    Raises:
        ModelLoadError: The files can't be used; names what is wrong.
    """
    with _open_model_file(stored, served_length, with_ahead=with_ahead) as files:
        tokens, rows = files.tokenizer.vocab_size, files.program.vocab_size
        # More rows than tokens have been left out where they are padding.
        if tokens != rows:
            raise ModelLoadError(
                str(stored.path),
                f"the tokenizer has {tokens} tokens, but token_embd.weight has {rows} rows",
            )
        if chat_template is not None:
            template = ChatTemplate.given(chat_template, files.tokenizer)
            files = replace(files, chat_template=template)
        else:
            files = replace(files, chat_template=_template_of(stored, files))
        yield files


def _template_of(stored: StoredModel, files: ModelFiles) -> ChatTemplate:
    """The weights' template, or the package's."""
    own = files.chat_template
    source = stored.template_beside(None if own.is_default else own.source)
    if source is None or source == own.source:
        return own
    return ChatTemplate.packaged(source, files.tokenizer)


@contextlib.contextmanager
def open_source(
    stored: StoredModel, *, with_ahead: bool = False
) -> Iterator[tuple[ModelFile, Tokenizer]]:
    """Open a model, and close its files at the end; for the arguments see `open_model`.

    Rows of the embedding and of the output matrix behind those of the tokenizer's tokens stand for
    nothing, and are left out.

    Raises:
        ModelLoadError: The files can't be used; names what is wrong.
    """
    folder = stored.folder
    with contextlib.ExitStack() as stack:
        if folder is None:
            file: ModelFile = with_latents(
                stack.enter_context(GGUFFile.open(stored.path, stored.paths))
            )
            tokenizer = Tokenizer.from_gguf(file)
        else:
            file = stack.enter_context(
                open_folder(folder, any_column_order=True, with_ahead=with_ahead)
            )
            encoder = file.architecture in ENCODERS
            tokenizer = folder_tokenizer(folder, file, is_encoder=encoder)
        _leave_padding_out(file, tokenizer.vocab_size)
        yield file, tokenizer


def _leave_padding_out(file: ModelFile, tokens: int) -> None:
    """Limit what has a row for each token to so many, where it has more."""
    ahead = [name for name in file.tensors if name.endswith(_OF_TOKENS_AHEAD)]
    for name in (_EMBEDDING, "output.weight", "output.bias", *ahead):
        tensor = file.tensors.get(name)
        if tensor is not None and tensor.shape[0] > tokens:
            file.limit_rows(name, tokens)


@contextlib.contextmanager
def _open_model_file(
    stored: StoredModel, served_length: int | None, *, with_ahead: bool
) -> Iterator[ModelFiles]:
    with open_source(stored, with_ahead=with_ahead) as (file, tokenizer):
        yield ModelFiles(
            weights=file,
            program=build_program(file, served_length=served_length),
            tokenizer=tokenizer,
            chat_template=ChatTemplate.from_gguf(file, tokenizer),
            adapter_base=AdapterBase.of(file),
            left_out=file.left_out if isinstance(file, FolderModel) else (),
            sampling=recommended_sampling(file),
        )
