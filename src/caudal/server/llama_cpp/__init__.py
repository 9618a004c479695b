"""llama.cpp's own routes, for the clients that speak to its server: completions and properties."""
