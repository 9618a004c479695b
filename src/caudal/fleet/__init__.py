"""Which models there are, which of them are loaded, and what is loaded and unloaded when.

`fleet.py` is what the server asks for models; `roster.py` knows which there are (those of a
`catalogue.py`), and `member.py` is one of them. `dispatcher.py` has requests wait, and begins what
`policy.py` decides of plain figures; `lifecycle.py` does it.
"""
