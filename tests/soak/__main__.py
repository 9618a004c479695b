"""`make soak SECONDS=1800 CLIENTS=200`: let a crowd at a server, and see what is left of it."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from soak.run import Soak, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--model", help="default: a tiny random one, which asks most of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"SEED={options.seed}")
        soak = Soak(
            seconds=options.seconds,
            clients=options.clients,
            seed=options.seed,
            folder=Path(folder),
            model=options.model,
        )
        findings = run(soak)
        print(findings.table())
        if findings.wrong:
            kept = Path(".soak.log")
            kept.write_bytes((Path(folder) / "server.log").read_bytes())
            print(f"what the server said is in {kept}")
    return 1 if findings.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
