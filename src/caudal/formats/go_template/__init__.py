"""Go's text/template, the language of the templates in Ollama's packages.

    source ─ lexer.py ─ parser.py ─► nodes.py: trees ─ evaluator.py ─► text
                        literals.py                     values.py, functions.py,
                                                        printing.py, json_text.py, numbers.py

`template.py` has `GoTemplate`, `detection.py` tells such a template from one of Jinja's, and
`ollama.py` does what Ollama does around one: it brings a conversation into the shape that
templates expect, and takes older templates through it turn by turn.
"""
