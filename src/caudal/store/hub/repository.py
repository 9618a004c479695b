"""What a repository of the Hub has: by asking it, or, offline, in the library's cache."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from caudal.errors import ModelNotFoundError, StoreError

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository.

    Attributes:
        size: Its bytes.
        sha256: Its hash in hex, which the Hub knows of large files; else empty.
        git_hash: What git calls the others' content, in hex; empty where nobody says.
    """

    size: int
    sha256: str = ""
    git_hash: str = ""

    def other_git_hash(self, path: Path) -> str | None:
        """Git's hash of a file, if it isn't what it has to be."""
        if not self.git_hash:
            return None
        content = path.read_bytes()
        named = b"blob %d\0" % len(content) + content
        found = hashlib.sha1(named, usedforsecurity=False).hexdigest()
        return found if found != self.git_hash else None


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A repository at one commit.

    Attributes:
        name: `ORG/REPO`.
        commit: The commit.
        files: Its files by path.
        licence: Its licence's name; empty where it doesn't say.
        is_offline: Whether only what is cached can be had.
        token: What to ask with; empty for nobody in particular.
    """

    name: str
    commit: str
    files: Mapping[str, HubFile]
    licence: str = ""
    is_offline: bool = False
    token: str = field(default="", repr=False)

    def url(self, file: str) -> str:
        """Where a file is."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.name, file, revision=self.commit)


def look_up(name: str) -> HubRepository:
    """What a repository has.

    Raises:
        ModelNotFoundError: There is no such repository, or it isn't cached.
        StoreError: The Hub can't be asked, or refuses.
    """
    import httpx2
    from huggingface_hub import HfApi, constants, get_token

    if constants.is_offline_mode():
        return _cached(name)
    with explained_hub_errors(name):
        try:
            info = HfApi(library_name="caudal").model_info(name, files_metadata=True)
        except (httpx2.ConnectError, httpx2.TimeoutException):
            # As the library does it: without a network, what is cached will do.
            with contextlib.suppress(ModelNotFoundError):
                return _cached(name)
            raise
    files = {
        each.rfilename: HubFile(each.size or 0, each.lfs.sha256)
        if each.lfs is not None
        else HubFile(each.size or 0, git_hash=each.blob_id or "")
        for each in info.siblings or ()
    }
    card = info.card_data
    licence = card.get("license_name") or card.get("license") if card is not None else ""
    return HubRepository(
        info.id,
        info.sha or "",
        files,
        licence if isinstance(licence, str) else "",
        token=get_token() or "",
    )


def _cached(name: str) -> HubRepository:
    """What the cache has of a repository."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        repositories = frozenset()
    for repository in repositories:
        if repository.repo_id.lower() == name.lower() and repository.repo_type == "model":
            newest = max(
                repository.revisions, key=lambda each: ("main" in each.refs, each.last_modified)
            )
            files = {
                file.file_path.relative_to(newest.snapshot_path).as_posix(): HubFile(
                    file.size_on_disk,
                    # Large files are called by their hash.
                    sha256=name if _SHA256.fullmatch(name := file.blob_path.name) else "",
                )
                for file in newest.files
            }
            return HubRepository(repository.repo_id, newest.commit_hash, files, is_offline=True)
    raise ModelNotFoundError(
        f"hf:{name} is not in the cache of the Hugging Face Hub's library, and HF_HUB_OFFLINE "
        "keeps it from being fetched"
    )


def find_cached(repository: HubRepository, file: str) -> Path | None:
    """Where the library's cache has a file of the repository; None where it hasn't."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository.name, file, revision=repository.commit)
    return Path(found) if isinstance(found, str) else None


@contextmanager
def explained_hub_errors(name: str) -> Iterator[None]:
    """Says what the library's errors mean for whoever asked for a repository."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise StoreError(
            f"hf:{name} is for those who accepted its terms. Accept them on its page, and log in "
            "with `hf auth login`, or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFoundError(
            f"the Hugging Face Hub has no {name}, or not for you: for private ones, log in with "
            "`hf auth login`, or set HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"hf:{name} is no repository: {error}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise StoreError(f"the Hugging Face Hub answered {status} for {name}") from error
    except (httpx2.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise StoreError(
            f"hf:{name} can't be fetched, for the Hugging Face Hub can't be reached: "
            f"{error or type(error).__name__}"
        ) from error
