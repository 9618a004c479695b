"""Keys for what GGUF has no keys for: how folders say that embeddings and scores are made."""

ACTIVATION = "caudal.hidden_act"
"""Activation inside the MLPs, by a program's name for it."""

NORMALIZE = "caudal.embedding.normalize"
"""Whether embeddings have length 1."""

DIMENSIONS = "caudal.embedding.dimensions"
"""Sizes that embeddings may be cut to."""

DENSE = "caudal.embedding.dense"
"""What follows each linear layer on the states, `dense_2`, `dense_3`, …: `identity` or `tanh`."""

PROMPT_NAMES = "caudal.embedding.prompt_names"
"""Names of what comes before texts."""

PROMPTS = "caudal.embedding.prompts"
"""What that is, in the same order."""

DEFAULT_PROMPT = "caudal.embedding.default_prompt"
"""The name of what comes before texts of which nothing is said."""

SIGMOID = "caudal.score.sigmoid"
"""Whether scores of pairs go through a sigmoid."""

SCORE_POOLING = "caudal.score.pooling"
"""What scores of pairs are made of: `cls`, the first token's state, or `mean`."""

LOWERCASE = "caudal.lowercase"
"""Whether text is put in lower case before the tokenizer sees it."""

RANK = 4
"""`{architecture}.pooling_type` of what scores pairs."""
