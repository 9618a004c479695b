"""The server's certificate and key: read, checked, and read anew while connections go on."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from caudal.errors import CaudalError, in_words

logger = logging.getLogger("caudal.server")

SOON_SECONDS = 14 * 86400
"""How long before a certificate expires the log begins to say so."""

_EXPIRED, _NOT_YET_VALID = 10, 9
"""How OpenSSL numbers what is wrong with a certificate."""


class CertificateError(CaudalError):
    """A certificate or its key can't be used.

    Args:
        file: The one that can't be.
        message: Why.
    """

    def __init__(self, file: Path, message: str) -> None:
        super().__init__(message)
        self.file = file


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where certificate and key are, as PEM.

    Attributes:
        certificate: The server's certificate, and behind it those that lead to its authority.
        key: Its key; None: in the same file.
        password: What the key is encrypted with, if it is.
        client_authorities: Authorities, one of which must have signed every client's certificate;
            None: clients need none.
    """

    certificate: Path
    key: Path | None = None
    password: str | None = None
    client_authorities: Path | None = None


class Certificates(Collector):
    """What connections are encrypted with.

    Args:
        files: Where that is.

    Raises:
        CertificateError: It can't be read, or doesn't fit together.

    Attributes:
        context: For connections that begin now.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self.context, self._expires = _read(files)

    def reload(self) -> None:
        """Read everything anew, for connections to come.

        Raises:
            CertificateError: It can't be used; what there was stays.
        """
        self.context, self._expires = _read(self._files)

    def collect(self) -> Iterator[Metric]:
        """When the certificate expires, for Prometheus."""
        if self._expires is not None:
            yield GaugeMetricFamily(
                "caudal_tls_certificate_expiry_timestamp_seconds",
                "When the server's certificate expires, in Unix time.",
                value=self._expires,
            )


def _read(files: CertificateFiles) -> tuple[ssl.SSLContext, float | None]:
    """A context for new connections, and when its certificate expires, where that can be told."""
    for file in (files.certificate, files.key, files.client_authorities):
        if file is not None:
            _check_readable(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    key = files.key or files.certificate
    try:
        # With a function, for otherwise OpenSSL asks the terminal where the key is encrypted.
        context.load_cert_chain(files.certificate, key, lambda: files.password or "")
    except ssl.SSLError as error:
        raise _explained(error, files) from error
    if files.client_authorities is not None:
        try:
            context.load_verify_locations(files.client_authorities)
        except ssl.SSLError as error:
            raise CertificateError(
                files.client_authorities,
                f"{files.client_authorities} has no certificates of authorities, as PEM",
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context, _check_dates(files)


def _check_readable(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            opened.read(1)
    except OSError as error:
        raise CertificateError(file, f"{file} can't be read: {in_words(error)}") from error


def _explained(error: ssl.SSLError, files: CertificateFiles) -> CertificateError:
    """What OpenSSL's error means, and of which file it is."""
    certificate = files.certificate
    key = files.key or certificate
    match error.reason:
        case "KEY_VALUES_MISMATCH" | "KEY_TYPE_MISMATCH" | "NO_CERTIFICATE_ASSIGNED":
            words = f"the key in {key} isn't that of the certificate in {certificate}"
            return CertificateError(key, words)
        case "EE_KEY_TOO_SMALL" | "CA_MD_TOO_WEAK" | "EE_MD_TOO_WEAK":
            words = f"the certificate in {certificate} is too weak: its key, or its signature"
            return CertificateError(certificate, words)
    text = key.read_text(errors="replace")
    if "ENCRYPTED" in text:
        words = f"the password isn't that of the key in {key}"
        if files.password is None:
            words = f"the key in {key} is encrypted: say its password (--ssl-keyfile-password)"
        return CertificateError(key, words)
    if "PRIVATE KEY" not in text:
        where = "" if files.key else ": say where it is (--ssl-keyfile)"
        return CertificateError(key, f"{key} has no private key, as PEM{where}")
    if "BEGIN CERTIFICATE" not in certificate.read_text(errors="replace"):
        return CertificateError(certificate, f"{certificate} has no certificate, as PEM")
    reason = error.reason or error
    return CertificateError(certificate, f"{certificate} and {key} can't be used: {reason}")


def _check_dates(files: CertificateFiles) -> float | None:
    """Say in the log whether the certificate has expired, or is about to; returns when it does.

    It is looked at as a client does that trusts it, for Python reads certificates in no other way.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = files.key or files.certificate
    server.load_cert_chain(files.certificate, key, lambda: files.password or "")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(files.certificate)
    try:
        seen = _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            logger.warning("the certificate in %s has expired", files.certificate)
        elif error.verify_code == _NOT_YET_VALID:
            logger.warning("the certificate in %s isn't valid yet", files.certificate)
        return None
    except ssl.SSLError:
        return None
    if seen is None:
        return None
    expires = float(ssl.cert_time_to_seconds(str(seen["notAfter"])))
    left = expires - time.time()
    if left < SOON_SECONDS:
        days = max(int(left // 86400), 0)
        logger.warning("the certificate in %s expires in %d days", files.certificate, days)
    return expires


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, object] | None:
    """What a client gets to see of a server's certificate; both are in this process."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_side=False)
    answering = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (asking, answering):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return asking.getpeercert()  # type: ignore[return-value]
