"""Load tests of servers that speak OpenAI's API: `caudal bench serve`, `caudal bench compare`."""
