"""Models in Hugging Face's folders, read as the GGUF files that llama.cpp's converter makes.

`open_folder` (model.py) gives a `ModelFile`: what config.json says, under GGUF's keys; the tensors
of the safetensors files, under llama.cpp's names and in its layouts; and the tokenizer. So a family
is computed by the same program from either. On the way, each step in a file of its own:

    config.json ─ config.py ──► families/*.py: keys ───────────────────────┐
    *.safetensors ─ checkpoint.py ─► methods.py: what they stand for ─►    ├─► model.py
                    families/*.py: names (name_tables.py) and layouts      │
                    (tensor_rules.py) of tensors (renamed_tensors.py) ─────┘
    modules.json … ─ sentence_keys.py: how embeddings are made ────────────┘

A family has a file in families/, with its table of keys and its table of names.
"""
