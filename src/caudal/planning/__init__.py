"""What a model takes, and what fits where, said before anything is loaded."""
