"""Names that lead to models: aliases, and routes, which choose by rule.

`rules.py` says what they are, `configuration.py` reads them, `routed_models.py` follows them, and
`cascade.py` asks one model after another.
"""
