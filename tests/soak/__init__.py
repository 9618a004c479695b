"""What a server goes through in production, all at once and for long: `make soak`.

Two hundred clients of every kind ask a real `caudal serve`: polite ones, whose every answer is
compared with what the same request is answered when nobody else asks, and others who leave, stop
reading, send nonsense, or whose key is revoked in the middle of an answer. At the end nothing may
be left of them: no KV block, no open file, no memory that grew; and a server that is told to stop
under load finishes what it has begun.
"""
