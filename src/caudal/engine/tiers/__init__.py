"""Where what the radix tree gives up goes, and comes back from: memory beyond the pools, a disk."""
