"""Run as a program: `caudal serve`'s server on a fake model. Tests send it signals."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from caudal.errors import CaudalError, ConfigurationError, ModelLoadError
from caudal.logs.setup import set_up_logs
from caudal.server import serving
from caudal.server.audit_log import AuditLog
from caudal.server.certificates import CertificateFiles, Certificates
from caudal.server.limits import ServerLimits
from caudal.server.reloading import Reloader
from caudal.service.model_service import ModelService
from caudal.service.registry import ModelRegistry
from support.fake_model import ScriptedExecutor, serve_fake
from support.template_server import serve_template


def load() -> ModelService:
    if "broken" in sys.argv:
        raise ModelLoadError("model.gguf", "it is broken")
    if "templates" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            return serve_template(Path(folder))
    if "slow" in sys.argv:
        time.sleep(600)
    executor = ScriptedExecutor(script=b"x" * 10_000, fail=lambda _: time.sleep(0.01))
    model = serve_fake(executor, max_model_len=8000)
    if "stuck" in sys.argv:
        model.parts.tokenizer.encode = lambda *_, **__: time.sleep(600)  # type: ignore[method-assign]
    return model


def refuse() -> None:
    raise ConfigurationError("a file, line 3", "it makes no sense")


def ready() -> None:
    print("ready", flush=True)


def certificate_in(folder: Path) -> CertificateFiles:
    return CertificateFiles(certificate=folder / "used.crt", key=folder / "used.key")


def main() -> int:
    limits = ServerLimits(
        notice_seconds=1.0 if "notice" in sys.argv else 0.0,
        drain_seconds=600 if "patient" in sys.argv else 0.3,
    )
    sock = serving.listen("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    ollama = None
    if "ollama" in sys.argv:
        ollama = serving.listen("127.0.0.1", 0)
        print(ollama.getsockname()[1], flush=True)
    folder = next((Path(each[6:]) for each in sys.argv if each.startswith("files=")), None)
    if folder is not None:
        set_up_logs("json")
    models = ModelRegistry()
    reloader = Reloader()
    if "reloads" in sys.argv:
        reloader.add("nothing", refuse)
        reloader.add("a word", lambda: print("reloaded", flush=True))

    async def start() -> None:
        models.add(await asyncio.to_thread(load))

    try:
        serving.serve(
            sock,
            models,
            start,
            limits=limits,
            ollama=ollama,
            reloader=reloader,
            audit_log=None if folder is None else AuditLog(str(folder / "audit.jsonl")),
            certificates=None if folder is None else Certificates(certificate_in(folder)),
            on_ready=ready,
        )
    except CaudalError as error:
        print(f"caudal: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
