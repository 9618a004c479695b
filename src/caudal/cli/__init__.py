"""The `caudal` command: one file per subcommand, none of which imports anything heavy up front."""

from caudal.cli.app import main

__all__ = ["main"]
