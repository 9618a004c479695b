"""HTTPS: the same server, with the same limits, behind certificates that change while it runs."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from cryptography import x509

from caudal.server.certificates import CertificateError, CertificateFiles, Certificates
from caudal.server.limits import ServerLimits
from support.certificates import Authority, Pair
from support.fake_model import ScriptedExecutor, serve_fake
from support.raw_client import connect, post, read_all
from support.running_server import RunningServer, running_server

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
LONG = b'{"prompt": "Hi", "max_tokens": 400, "stream": true}'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.pair("server")


def files(pair: Pair, **more: Any) -> CertificateFiles:
    return CertificateFiles(certificate=pair.certificate, key=pair.key, **more)


@contextlib.contextmanager
def serving(
    authority: Authority,
    certificates: Certificates,
    executor: ScriptedExecutor,
    *,
    client: Pair | None = None,
    **limits: Any,
) -> Iterator[RunningServer]:
    with running_server(
        serve_fake(executor),
        certificates=certificates,
        verify=authority.trusting(client),
        limits=ServerLimits(**limits),
    ) as server:
        yield server


def slow() -> ScriptedExecutor:
    return ScriptedExecutor(script=b"x" * 450, fail=lambda _: time.sleep(0.01))


def over_tls(server: RunningServer, authority: Authority, **options: Any) -> ssl.SSLSocket:
    sock = connect(server.url, **options)
    return authority.trusting().wrap_socket(sock, server_hostname="127.0.0.1")


def serial_of(server: RunningServer, authority: Authority) -> int:
    """Of the certificate that a new connection gets."""
    with over_tls(server, authority) as sock:
        der = sock.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def test_official_clients_and_a_new_certificate_under_a_running_stream(
    authority: Authority, tmp_path: Path, pair: Pair
) -> None:
    first, second = authority.pair("first", rsa_key=True), authority.pair("second")
    used = Pair(tmp_path / "used.crt", tmp_path / "used.key", 0)

    def put(certificate: Pair, key: Pair) -> None:
        used.certificate.write_bytes(certificate.certificate.read_bytes())
        used.key.write_bytes(key.key.read_bytes())

    put(first, first)
    certificates = Certificates(files(used))
    with serving(authority, certificates, slow()) as server:
        client = openai.OpenAI(
            base_url=f"{server.url}/v1",
            api_key="none",
            max_retries=0,
            http_client=httpx.Client(verify=authority.trusting()),
        )
        stream = client.chat.completions.create(
            model="fake", messages=MESSAGES, max_tokens=60, stream=True
        )
        pieces = [next(stream)]
        assert serial_of(server, authority) == first.serial
        put(second, first)
        with pytest.raises(CertificateError, match="isn't that of the certificate"):
            certificates.reload()
        assert serial_of(server, authority) == first.serial
        put(second, second)
        certificates.reload()
        assert serial_of(server, authority) == second.serial
        pieces += stream
        text = "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
        assert text == "x" * 60
        assert server.metric('caudal_kv_blocks{state="used"}') == 0


@pytest.mark.parametrize("days", [-1, 2])
def test_a_certificate_that_has_expired_is_said_to_have(
    authority: Authority, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    pair = authority.pair(f"old{days}", days=days + 0.1)
    Certificates(files(pair))
    told = "has expired" if days < 0 else "expires in 2 days"
    assert told in caplog.text


def test_what_does_not_fit_is_said(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    locked = authority.pair("locked", password="open")
    nothing = tmp_path / "nothing"
    nothing.write_text("nothing")

    def why(**given: Any) -> str:
        with pytest.raises(CertificateError) as error:
            Certificates(CertificateFiles(**given))
        return str(error.value)

    other = authority.pair("other")
    assert "isn't that of the certificate" in why(certificate=pair.certificate, key=other.key)
    assert "No such file" in why(certificate=tmp_path / "gone")
    assert "has no private key" in why(certificate=pair.certificate)
    assert "has no private key" in why(certificate=pair.certificate, key=nothing)
    assert "has no certificate" in why(certificate=nothing, key=pair.key)
    assert "is encrypted" in why(certificate=locked.certificate, key=locked.key)
    wrong = {"certificate": locked.certificate, "key": locked.key, "password": "wrong"}
    assert "the password isn't" in why(**wrong)
    assert "authorities" in why(
        certificate=pair.certificate, key=pair.key, client_authorities=nothing
    )
    Certificates(files(locked, password="open"))


def test_clients_need_a_certificate_where_that_is_asked_for(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    certificates = Certificates(files(pair, client_authorities=authority.file))
    client = authority.pair("client")
    stranger = Authority(tmp_path, "stranger").pair("client")
    with serving(authority, certificates, ScriptedExecutor(), client=client) as server:
        assert server.http.get("/health").status_code == 200
        for wrong in (None, stranger):
            with (
                httpx.Client(verify=authority.trusting(wrong)) as other,
                pytest.raises(httpx.TransportError),
            ):
                other.get(f"{server.url}/health")


def test_what_is_no_tls_is_told_so_and_old_versions_are_refused(
    authority: Authority, pair: Pair
) -> None:
    certificates = Certificates(files(pair))
    assert certificates.context.minimum_version == ssl.TLSVersion.TLSv1_2
    with serving(authority, certificates, ScriptedExecutor()) as server:
        with connect(server.url) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"speaks HTTPS" in answer
        with connect(server.url) as sock:
            sock.sendall(b"\x16\x03\x01\x00\x05hello")
            assert read_all(sock)[:1] == b"\x15", "an alert"
        assert server.http.get("/health").status_code == 200


def test_limits_hold(authority: Authority, pair: Pair) -> None:
    limits = {"header_seconds": 0.4, "body_seconds": 0.4, "unread_seconds": 0.4, "min_rate": 2**30}
    limits["linger_seconds"] = 0.4
    with serving(authority, Certificates(files(pair)), slow(), **limits) as server:
        silent = connect(server.url)
        halfway = connect(server.url)
        halfway.sendall(b"\x16\x03\x01\x02\x00\x01")
        shaken = over_tls(server, authority)
        amid = over_tls(server, authority)
        amid.sendall(post("/v1/completions", b"x" * 100)[:-50])
        started = time.monotonic()
        for sock in (silent, halfway, shaken):
            assert read_all(sock) == b""
        assert read_all(amid).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 8
        for sock in (silent, halfway, shaken, amid):
            sock.close()


def test_a_client_that_does_not_read_or_has_finished_sending(
    authority: Authority, pair: Pair
) -> None:
    body = b'{"prompt": "Hi", "max_tokens": 250, "stream": true, "logprobs": 5, "n": 4}'
    quick = ScriptedExecutor(script=b"x" * 450, num_blocks=4096)
    with serving(
        authority, Certificates(files(pair)), quick, unread_seconds=0.3, min_rate=2**30
    ) as server:
        with over_tls(server, authority, receive_buffer=4096) as unread:
            unread.sendall(post("/v1/completions", body))
            server.wait_for_metric("caudal_http_requests_in_progress", 1)  # this one alone
            server.wait_for_metric('caudal_kv_blocks{state="used"}', 0)
        with over_tls(server, authority) as sock:
            sock.sendall(post("/v1/completions", LONG, "Connection: close"))
            socket.socket.shutdown(sock, socket.SHUT_WR)  # `SSLSocket` would forget its keys
            assert b"data: [DONE]" in read_all(sock)
