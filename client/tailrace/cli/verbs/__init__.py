"""One module a verb; `cli.main` has the list."""
