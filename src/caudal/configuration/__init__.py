"""What `caudal serve` may be told: its settings, where they come from, and what is made of them.

`settings.py` puts them together from `server_settings.py` and `model_settings.py`, where each is a
field; flags, help and environment variables follow from there.
`effective.py` merges what they come from, `pieces.py` makes of them what the server is given, and
`running.py` runs it. Nothing here knows of the command line.
"""
