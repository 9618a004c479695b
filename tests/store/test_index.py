from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from caudal.errors import StoreError
from caudal.store.pypi.index import PackageIndex
from caudal.store.pypi.pip_settings import PipSettings
from support.package_index import LocalIndex
from support.wheels import build_wheel, model_bytes

Ask = Callable[..., PackageIndex]


@pytest.fixture
def ask(request: pytest.FixtureRequest) -> Ask:
    def make(**settings: object) -> PackageIndex:
        index = PackageIndex(PipSettings(**settings))  # type: ignore[arg-type]
        request.addfinalizer(index.close)
        return index

    return make


def wheels_of(directory: Path, package: str, *versions: str) -> list[Path]:
    content = {f"{package}/m.gguf": model_bytes(100)}
    return [build_wheel(directory, package, version, content) for version in versions]


def test_the_newest_release_unless_one_is_named(index: LocalIndex, ask: Ask) -> None:
    wheels_of(index.directory, "tiny", "1.9", "1.10", "2.0rc1")
    here = ask(index_url=index.url)
    assert here.find("tiny").version == "1.10"
    assert here.find("Tiny==1.9").filename == "tiny-1.9-py3-none-any.whl"
    assert here.find("tiny==2.0rc1").version == "2.0rc1"


def test_the_newest_release_of_all_sources(index: LocalIndex, ask: Ask, tmp_path: Path) -> None:
    wheels_of(index.directory, "tiny", "1.0")
    folder = tmp_path / "links"
    folder.mkdir()
    (newer,) = wheels_of(folder, "tiny", "1.1")
    found = ask(index_url=index.url, find_links=(str(folder), "/no/such/folder")).find("tiny")
    assert found.local_path == newer
    assert ask(find_links=(str(folder),), no_index=True).find("tiny").version == "1.1"


def test_an_index_on_disk(tmp_path: Path, ask: Ask) -> None:
    page = tmp_path / "tiny"
    page.mkdir()
    (wheel,) = wheels_of(page, "tiny", "1.0")
    (page / "index.html").write_text(f'<a href="{wheel.name}#sha256=AB12">{wheel.name}</a>')
    found = ask(index_url=tmp_path.as_uri()).find("tiny")
    assert found.local_path == wheel
    assert found.sha256 == "ab12"


def test_a_package_that_is_nowhere(index: LocalIndex, ask: Ask) -> None:
    with pytest.raises(StoreError, match=r"no package index .* has a wheel of tiny$"):
        ask(index_url=index.url).find("tiny")


def test_a_version_that_is_nowhere_names_those_there_are(index: LocalIndex, ask: Ask) -> None:
    wheels_of(index.directory, "tiny", "1.0", "1.1")
    with pytest.raises(StoreError, match=r"no wheel for tiny==3; it has 1\.1, 1\.0$"):
        ask(index_url=index.url).find("tiny==3")


def test_an_unreachable_source_hides_no_other(index: LocalIndex, ask: Ask) -> None:
    wheels_of(index.directory, "tiny", "1.0")
    sources = ask(index_url="http://127.0.0.1:1/simple", extra_index_urls=(index.url,))
    assert sources.find("tiny").version == "1.0"
    with pytest.raises(StoreError, match=r"Not every source .* http://127\.0\.0\.1:1/simple"):
        sources.find("other")


def test_credentials_come_from_the_url_and_are_never_shown(index: LocalIndex, ask: Ask) -> None:
    wheels_of(index.directory, "tiny", "1.0")
    index.credentials = ("anna", "s3cret")
    with_credentials = index.url.replace("://", "://anna:s3cret@")
    found = ask(index_url=with_credentials).find("tiny")
    assert "s3cret" not in found.shown_url
    wrong = ask(index_url=index.url.replace("://", "://anna:wr0ng@"))
    with pytest.raises(StoreError, match="401") as refused:
        wrong.find("tiny")
    assert "wr0ng" not in str(refused.value)


def test_an_insecure_index_must_be_trusted(ask: Ask) -> None:
    with pytest.raises(StoreError, match="not being trusted"):
        ask(index_url="http://index.invalid/simple").find("tiny")


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("not a certificate")
    with pytest.raises(StoreError, match=r"certificates .*cert\.pem"):
        PackageIndex(PipSettings(cert=str(file)))
    with pytest.raises(StoreError, match=r"certificates .*none\.pem"):
        PackageIndex(PipSettings(client_cert=str(tmp_path / "none.pem")))
