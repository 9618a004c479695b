"""Models in processes of their own: started, watched, and asked over a socket.

`launcher.py` has what is started and how; everything else is one of the two ways of doing it.
"""
