"""What is written to logs, and how: one form for the server, its workers and their libraries.

Neither prompts nor answers nor keys are ever written, unless whoever runs the server asks for it.
"""
