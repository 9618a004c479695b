"""Files from strangers, checked as they are read: weights, tokenizers, chat templates."""
