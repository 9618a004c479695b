"""What a model is made of: Modelfiles, making models of them, and describing what was made."""
