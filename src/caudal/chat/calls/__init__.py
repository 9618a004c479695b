"""Tool calls as models write them: one module per family of formats, and the table of all formats.

A format's reader is a generator that is sent one character at a time, so what it makes of a text
can't depend on how the text was cut.
"""
