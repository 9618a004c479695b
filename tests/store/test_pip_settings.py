from __future__ import annotations

from pathlib import Path

import pytest

from caudal.errors import StoreError
from caudal.store.pypi.pip_settings import PipSettings, parse_pip_settings, read_pip_settings
from support.pip_environment import clear_pip_configuration


def test_nothing_configured_means_pips_defaults() -> None:
    assert parse_pip_settings("", {}) == PipSettings()


def test_environment_beats_install_section_beats_global_section() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://env.example/simple'",
            "global.index-url='https://global.example/simple'",
            "global.extra-index-url='https://one.example\\nhttps://two.example'",
            "install.index-url='https://install.example/simple'",
            "install.find-links='/wheels  /more'",
            "freeze.index-url='https://ignored.example'",
            "global.no-index='true'",
            "global.trusted-host='a.example b.example:8080'",
            "global.client-cert='/client.pem'",
            "global.proxy='http://proxy.example:3128'",
            "global.default-timeout='60'",
            "global.retries='2'",
        ]
    )
    assert parse_pip_settings(listing, {"CURL_CA_BUNDLE": "/bundle.pem"}) == PipSettings(
        index_url="https://env.example/simple",
        extra_index_urls=("https://one.example", "https://two.example"),
        find_links=("/wheels", "/more"),
        no_index=True,
        trusted_hosts=("a.example", "b.example:8080"),
        cert="/bundle.pem",
        client_cert="/client.pem",
        proxy="http://proxy.example:3128",
        timeout=60.0,
        retries=2,
    )


def test_pips_certificate_beats_the_bundles_of_the_environment() -> None:
    settings = parse_pip_settings("global.cert='/pip.pem'", {"REQUESTS_CA_BUNDLE": "/other.pem"})
    assert settings.cert == "/pip.pem"


@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan"])
def test_a_number_that_is_none(value: str) -> None:
    with pytest.raises(StoreError, match="timeout"):
        parse_pip_settings(f"global.timeout='{value}'", {})


def test_reads_what_pip_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear_pip_configuration(monkeypatch)
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://file.example/simple\ntimeout = 5\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_TIMEOUT", "7")
    settings = read_pip_settings()
    assert settings.index_url == "https://file.example/simple"
    assert settings.timeout == 7.0
