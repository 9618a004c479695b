"""Emits a program's operations, and cuts them into the sections that a program has.

What emits an operation is in the file for its kind, named as the one of `caudal.models.program`.
"""

from caudal.models.builder.builder import ProgramBuilder

__all__ = ["ProgramBuilder"]
