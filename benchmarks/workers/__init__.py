"""Programs that run a model in the environment of one peer and time it on request.

They talk in lines of JSON on standard input and output; `protocol.py` has the form. Each imports
its own peer and otherwise only the standard library, as nothing else is installed there.
"""
