"""Programs on the CPU, through the native library."""
