"""Run settings: composition, TOML files, presets, devices."""
