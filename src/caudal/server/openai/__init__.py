"""OpenAI's API: models, chat completions, completions, and vLLM's tokenize routes beside them."""
