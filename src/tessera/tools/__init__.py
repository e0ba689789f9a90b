"""The `tessera` command: one file per subcommand."""
