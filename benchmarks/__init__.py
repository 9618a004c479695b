"""Caudal beside its peers on the same files, threads and token counts. Development only."""
