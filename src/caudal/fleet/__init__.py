"""Which models there are, which of them are loaded, and what is loaded and unloaded when.

`fleet.py` is what the server asks for models; `policy.py` decides, of plain figures, and
`member.py` is one model on its way from a name to something that answers, and back.
"""
