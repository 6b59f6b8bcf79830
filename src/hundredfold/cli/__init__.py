"""One module per word of the command line; each has `run(arguments) -> exit code`."""
