"""What the benchmarks share: processes, the measured server, PostgreSQL, tables of results."""
