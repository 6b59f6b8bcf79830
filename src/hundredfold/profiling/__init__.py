"""Throughput and efficiency measurements of envs and backends."""
