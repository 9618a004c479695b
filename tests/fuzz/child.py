"""One target in a process of its own: `python -m fuzz.child NAME SECONDS CORPUS FINDINGS`.

With a file instead of seconds, that file alone is tried.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[2] / "src"

SECONDS_PER_INPUT = 20
"""Far more than any takes, for machines that do other things meanwhile."""

RESIDENT_MB = 2048
ADDRESS_SPACE = 16 << 30
"""Threads' stacks and arenas are reserved by the gigabyte; a hostile size is larger still."""


class SourceFinder(MetaPathFinder):
    """Finds modules of ours as the files that they are."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        place = SOURCES.joinpath(*fullname.split("."))
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return spec_from_file_location(fullname, file)
        return None


def main() -> None:
    name, what, corpus, findings = sys.argv[1:]
    import atheris

    with atheris.instrument_imports(include=["caudal"]):
        # The finder of editable installs hides what Atheris has to change.
        sys.meta_path.insert(0, SourceFinder())
        sys.meta_path.sort(key=lambda finder: "Atheris" not in type(finder).__name__)
        from fuzz.targets import TARGETS

        target = TARGETS[name]
        with contextlib.ExitStack() as stack:
            run = stack.enter_context(target.open())
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))

            def test_one(data: bytes) -> None:
                try:
                    run(data)
                except (Exception, KeyboardInterrupt):
                    raise
                except BaseException as error:  # a Rust panic, which Atheris wouldn't count
                    raise RuntimeError(f"{type(error).__name__}: {error}") from error

            options: dict[str, Any] = {}
            mutate = target.mutate
            if mutate is not None:

                def custom_mutator(data: bytes, max_size: int, seed: int) -> bytes:
                    changed = mutate(data, seed) if seed % 8 else data
                    if changed == data or len(changed) > max_size:
                        changed = atheris.Mutate(data, max_size)
                    return changed

                options["custom_mutator"] = custom_mutator
            arguments = [
                sys.argv[0],
                f"-timeout={SECONDS_PER_INPUT}",
                f"-rss_limit_mb={RESIDENT_MB}",
                f"-artifact_prefix={findings}/",
                "-max_len=65536",
                "-print_final_stats=1",
            ]
            if what.isdigit():
                arguments += [f"-max_total_time={what}", corpus, str(target.seeds[0].parent)]
            else:
                arguments.append(what)
            Path(findings).mkdir(parents=True, exist_ok=True)
            Path(corpus).mkdir(parents=True, exist_ok=True)
            atheris.Setup(arguments, test_one, **options)
            atheris.Fuzz()


if __name__ == "__main__":
    main()
