"""What `caudal bench` measures with."""
