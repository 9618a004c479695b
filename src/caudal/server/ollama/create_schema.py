"""What `POST /api/create` takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from pydantic import Field
from starlette.exceptions import HTTPException

from caudal.errors import ParameterError
from caudal.reading.fields import RequestObject
from caudal.server.ollama.names import NamedModel, checked_name
from caudal.store.oci import parse_digest


class PackagedMessageField(RequestObject):
    """A message that conversations begin with."""

    role: str
    content: str


class CreateRequest(NamedModel):
    """Body of `POST /api/create`."""

    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "draft_files": ({},),
        "draft_quantize": ("",),
        "modelfile": ("",),  # which clients read themselves since Ollama 0.5.5
        "path": ("",),
        "remote_host": ("",),
    }
    hints: ClassVar[Mapping[str, Sequence[Any]]] = {"info": ({},)}

    from_: str | None = Field(None, alias="from", description="The model that it builds on.")
    files: dict[str, str] | None = Field(
        None, description="What it is made of: digests of blobs, by the files' names."
    )
    adapters: dict[str, str] | None = Field(None, description="A LoRA adapter, likewise.")
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[PackagedMessageField] | None = None
    quantize: str | None = Field(None, description="E.g. `q4_K_M`.")
    quantization: str | None = Field(None, description="The older name of `quantize`.")
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    stream: bool | None = Field(None, description="Line by line, unless it is false.")

    def recipe(self) -> dict[str, Any]:
        """The arguments of `caudal.packaging.recipe.Recipe`, as plain data. None names a file.

        Raises:
            HTTPException, ParameterError: It can't be made of that.
        """
        if not self.from_ and self.files is None:
            raise HTTPException(400, "neither 'from' or 'files' was specified")
        if not self.from_ and not self.files:
            raise HTTPException(400, "no files provided to convert")
        licences = [self.license] if isinstance(self.license, str) else self.license or []
        texts = {
            "template": self.template,
            "system": self.system,
            "quantize": self.quantize or self.quantization,
            "renderer": self.renderer,
            "parser": self.parser,
            "requires": self.requires,
        }
        return {
            "from_": checked_name(self.from_) if self.from_ else None,
            "files": self._files("files", self.files),
            "adapters": self._files("adapters", self.adapters),
            "licences": [text for text in licences if text],
            "parameters": self.parameters or {},
            "messages": [
                {"role": each.role, "content": each.content} for each in self.messages or ()
            ],
            **{name: text for name, text in texts.items() if text},
        }

    def digests(self) -> Iterator[str]:
        """Of the blobs that it needs."""
        for files in (self.files, self.adapters):
            yield from (files or {}).values()

    def _files(self, field: str, given: dict[str, str] | None) -> dict[str, str]:
        for name, digest in (given or {}).items():
            path = PurePosixPath(name)
            if not name or path.is_absolute() or ".." in path.parts or "\\" in name:
                raise HTTPException(400, "file path must be relative")
            try:
                parse_digest(digest)
            except ValueError as error:
                raise ParameterError(field, f"{field}: {error}") from error
        return dict(given or {})
