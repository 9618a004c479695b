"""Many requests in one file, answered when there is room: files, batches, and what runs them.

Nothing here knows HTTP: a line is answered by whatever `Answer` its caller has for it.
"""
