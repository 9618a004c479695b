"""Objects of JSON from outside, read as what they mean: one reading for HTTP and the library."""
