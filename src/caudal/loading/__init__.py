"""From a model's name to something that can run: options, a plan, the files, an executor."""
