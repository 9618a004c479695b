"""The forms that answers can be held to: JSON schemas, patterns, choices, Lark, rules for tokens.

What is asked for (`StructuredOutputsParams`) becomes a grammar that llguidance enforces; the engine
knows it by its protocol alone (`caudal.engine.grammar`).
"""
